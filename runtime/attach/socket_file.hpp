// The file of a Unix socket: its address, whether its socket lives, and removing one file and no other.
//
// Thread safety: pure functions of the file system.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>

#include <filesystem>
#include <optional>

namespace pollcore {

/// Identifies a file, whatever its name. No other file has these numbers as long as a socket is bound to this one.
struct SocketFile {
    dev_t device = 0;
    ino_t inode = 0;

    [[nodiscard]] static SocketFile of(const struct stat& status) noexcept { return {status.st_dev, status.st_ino}; }
    bool operator==(const SocketFile&) const = default;
};

/// Throws Error(ENAMETOOLONG).
[[nodiscard]] sockaddr_un socket_address(const std::filesystem::path& path);

/// Looks at the name itself and follows no link (lstat(2)). Returns nothing, with errno, when it cannot be seen or is
/// not there (ENOENT).
[[nodiscard]] std::optional<struct stat> look_at(const std::filesystem::path& path) noexcept;

/// Throws Error(EADDRINUSE) unless connecting proves that no socket is bound to the file any more. A process that
/// listens there notices nothing of it.
void require_dead(const std::filesystem::path& path);

/// Removes the name if it is this file's. False: the name is another file's, which stays. Throws Error if the name
/// cannot be removed.
bool remove_only(const std::filesystem::path& path, const SocketFile& file);

}  // namespace pollcore
