// Functions for the file of a Unix socket: they make its address, check whether its socket lives, and remove exactly
// this file.
//
// Thread safety: pure functions of the file system.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>

#include <filesystem>
#include <optional>
#include <string_view>

namespace pollcore {

/// Identifies a file independently of its name. As long as a socket is bound to the file, no other file has these
/// numbers.
struct SocketFile {
    dev_t device = 0;
    ino_t inode = 0;

    [[nodiscard]] static SocketFile of(const struct stat& status) noexcept { return {status.st_dev, status.st_ino}; }
    bool operator==(const SocketFile&) const = default;
};

/// Throws Error(ENAMETOOLONG) if `path` is empty or too long. `key` is the configuration's key for the path, for the
/// error's text.
[[nodiscard]] sockaddr_un socket_address(const std::filesystem::path& path, std::string_view key = "attach.path");

/// The status of the file `path`. Does not follow a link (lstat(2)). Returns nothing, and sets errno, if the file
/// cannot be seen or does not exist (ENOENT).
[[nodiscard]] std::optional<struct stat> look_at(const std::filesystem::path& path) noexcept;

/// Tries to connect to the file. Throws Error(EADDRINUSE) if this does not prove that no socket is bound to the file
/// any more. A process that listens there does not notice the attempt.
void require_dead(const std::filesystem::path& path, std::string_view key = "attach.path");

/// Removes `path` if it names `file`. Returns true also if `path` names nothing. Returns false if `path` names another
/// file, which stays. Throws Error if `path` cannot be removed.
bool remove_only(const std::filesystem::path& path, const SocketFile& file);

}  // namespace pollcore
