// Reserves the cores of a runtime's workers against other runtimes.
//
// A core's lock admits only one runtime of a user. A lock of the daemon also excludes runtimes of other users. A claim
// by another process only causes a warning in the log: otherwise any user could keep a daemon from starting (D31).
//
// Thread safety: one thread at a time: first the thread that makes the runtime, later the thread that stops it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>

#include "control/core_claim.hpp"
#include "control/core_lock.hpp"
#include "control/lock_directory.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

struct HeldCore {
    CoreLock lock;
    std::optional<CoreClaim> claim;  ///< empty if the kernel provided no socket, which was logged
};

/// Locks and claims the workers' cores, and returns them by core number. Returns nothing if the configuration shares
/// its cores. Throws Error: EBUSY, naming the owner, if another runtime has a core; otherwise the error of the lock
/// directory or lock file.
[[nodiscard]] std::map<std::uint32_t, HeldCore> hold_cores(
    const Config& config, const std::filesystem::path& of_daemon = kDaemonLockDirectory);

}  // namespace pollcore
