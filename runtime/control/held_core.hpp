// The cores of a runtime's workers, held against other runtimes.
//
// The lock gives a core to one runtime of a user. The daemon's lock excludes runtimes of other users, too. A claim of
// another user's process only makes a warning in the log: else any user could keep a daemon from starting (D31).
//
// Thread safety: none; the thread that makes the runtime, and then the one that stops it.
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
    std::optional<CoreClaim> claim;  ///< nothing: the kernel gave no socket; the log says so
};

/// The held cores, by core; none when the configuration shares its cores. Throws Error: EBUSY, naming the owner, when a
/// core is taken; else the error of the lock's directory or file.
[[nodiscard]] std::map<std::uint32_t, HeldCore> hold_cores(
    const Config& config, const std::filesystem::path& of_daemon = kDaemonLockDirectory);

}  // namespace pollcore
