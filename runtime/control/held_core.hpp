// The cores of a runtime's workers, held against other runtimes.
//
// A core has one runtime among those of a user, by its lock; the daemon's lock excludes runtimes of other users, too.
// What other users claim is told in the log: else they could keep a daemon from starting.
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
    std::optional<CoreClaim> claim;  ///< nothing: the kernel gave none, as the log says
};

/// By core; nothing when the configuration shares its cores. Throws Error: EBUSY, naming the owner, when a core is
/// taken; else what the lock's directory or file said.
[[nodiscard]] std::map<std::uint32_t, HeldCore> hold_cores(
    const Config& config, const std::filesystem::path& of_daemon = kDaemonLockDirectory);

}  // namespace pollcore
