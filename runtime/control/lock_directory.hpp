// The directory of the core locks (core_lock.hpp).
//
// A user who may write to the directory can take a lock away from its owner, or hold a lock for ever. So each user has
// a directory of their own. A directory that other users may write to is refused, even a sticky one like /tmp.
//
// Thread safety: none. Only the thread that makes the runtime uses this class.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <vector>

#include "base/unique_fd.hpp"

namespace pollcore {

/// Only root can make this directory. Root or the service manager then gives it to the daemon's user.
inline constexpr const char* kDaemonLockDirectory = "/run/pollcore";

/// The directories that may hold a user's locks, the best one first. They depend on no environment variable, because
/// all processes of a user must find the same directory. Anybody can make another user's directory in /tmp first. So a
/// daemon should use one of the other two, or a configured directory.
[[nodiscard]] std::vector<std::filesystem::path> usual_lock_directories(uid_t user);

/// Keeps the directory open, so that locks are made in the directory that was checked.
class LockDirectory {
public:
    /// Opens an existing directory that belongs to this user or to root, and that nobody else may write to. Throws
    /// Error: EPERM if the directory is not of this kind; otherwise the error of open(2), such as ENOENT.
    explicit LockDirectory(const std::filesystem::path& configured);
    /// Opens the first candidate that belongs to this user and that nobody else may write to. Makes a missing
    /// candidate, but not its parent directories. Throws Error, whose text says for each candidate why it cannot be
    /// used.
    explicit LockDirectory(const std::vector<std::filesystem::path>& candidates);

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }

private:
    std::filesystem::path path_;
    UniqueFd fd_;
};

}  // namespace pollcore
