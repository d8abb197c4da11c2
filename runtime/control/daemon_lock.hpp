// The daemon's core locks, as processes of other users see them.
//
// Nobody else may open the daemon's lock files: a process that can open a file can lock it. The kernel lists all locks
// in /proc/locks by device and inode, and everybody may look up the inode of a lock file. A lock found there is proof:
// only the directory's owner can have locked the file.
//
// Thread safety: a pure function of the file system.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pollcore {

struct DaemonLock {
    std::filesystem::path file;
    pid_t process = 0;  ///< the process that locked it
    uid_t user = 0;     ///< the owner of the file
};

/// The lock of a core in the daemon's directory, while a process holds it. Returns nothing, too, if this process cannot
/// see the lock: /proc is hidden, the holder is in another PID namespace, or the file system numbers its devices
/// differently (btrfs).
[[nodiscard]] std::optional<DaemonLock> find_daemon_lock(const std::filesystem::path& directory, std::uint32_t core);

}  // namespace pollcore
