// The directory that core locks lie in.
//
// Whoever may write in that directory can take a lock away from its owner, or hold it for ever. So each user has a
// directory of its own, and one that other users may write is refused, also a sticky one like /tmp.
//
// Thread safety: none; the thread that makes the runtime.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <vector>

#include "base/unique_fd.hpp"

namespace pollcore {

/// Only root can make it. Its owner is the daemon's user, as whom root or the service manager has it.
inline constexpr const char* kDaemonLockDirectory = "/run/pollcore";

/// Where a user's locks may lie, the best place first. No environment variable has a say: all processes of a user have
/// to come to the same directory. Anybody can take the name in /tmp away from a user: a daemon has one of the other
/// two, or a configured one.
[[nodiscard]] std::vector<std::filesystem::path> usual_lock_directories(uid_t user);

/// Holds the directory open, so that it stays the one that was checked.
class LockDirectory {
public:
    /// One that exists, and that only this user or root may write. Throws Error: it is not there (ENOENT, ENOTDIR), or
    /// others may write it (EPERM).
    explicit LockDirectory(const std::filesystem::path& configured);
    /// The first candidate that is this user's alone; the last name of its path is made where it is missing. Throws
    /// Error, which says of each candidate why it is not taken.
    explicit LockDirectory(const std::vector<std::filesystem::path>& candidates);

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }

private:
    std::filesystem::path path_;
    UniqueFd fd_;
};

}  // namespace pollcore
