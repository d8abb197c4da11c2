// The daemon's core locks, as processes of other users see them.
//
// Other users may not open the daemon's lock files, because a process that can open a file can lock it. They read
// /proc/locks instead: it lists all locks by device and inode, and everybody may look up the inode of a lock file. An
// entry there proves that the core is taken: only the directory's owner can have locked the file.
//
// Thread safety: any thread. The function keeps no state.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pollcore {

struct DaemonLock {
    std::filesystem::path file;
    pid_t process = 0;  ///< the process that locked `file`
    uid_t user = 0;     ///< the owner of the file
};

/// Returns the lock of a core in the daemon's directory, if a process holds it. Also returns nothing if this process
/// cannot see the lock: /proc is hidden, the holder is in another PID namespace, or the file system numbers its devices
/// differently (btrfs).
[[nodiscard]] std::optional<DaemonLock> find_daemon_lock(const std::filesystem::path& directory, std::uint32_t core);

}  // namespace pollcore
