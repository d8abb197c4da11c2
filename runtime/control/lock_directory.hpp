// The directory that core locks lie in.
//
// A user who may write in this directory can take a lock away from its owner, or hold it for ever. So each user has a
// directory of their own. A directory that other users may write in is refused, even a sticky one like /tmp.
//
// Thread safety: none; the thread that makes the runtime.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <vector>

#include "base/unique_fd.hpp"

namespace pollcore {

/// Only root can make it; root or the service manager gives it to the daemon's user.
inline constexpr const char* kDaemonLockDirectory = "/run/pollcore";

/// Where a user's locks may lie, the best place first. No environment variable has a say: all processes of a user must
/// find the same directory. Anybody can take the name in /tmp first, so a daemon uses one of the other two, or a
/// configured directory.
[[nodiscard]] std::vector<std::filesystem::path> usual_lock_directories(uid_t user);

/// Holds the directory open, so that it stays the directory that was checked.
class LockDirectory {
public:
    /// A directory that exists, and that only this user or root may write in. Throws Error: it does not exist (ENOENT,
    /// ENOTDIR), or others may write in it (EPERM).
    explicit LockDirectory(const std::filesystem::path& configured);
    /// The first candidate that is this user's alone. The last directory of its path is made if it is missing. Throws
    /// Error, which says for each candidate why it was not taken.
    explicit LockDirectory(const std::vector<std::filesystem::path>& candidates);

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }

private:
    std::filesystem::path path_;
    UniqueFd fd_;
};

}  // namespace pollcore
