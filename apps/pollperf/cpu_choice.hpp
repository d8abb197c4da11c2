// Chooses the CPUs of the application's thread and of the worker.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "workload.hpp"

namespace pollcore::perf {

struct Placement {
    std::uint32_t core = 0;    ///< CPU of the application's thread
    std::uint32_t worker = 0;  ///< CPU of the worker, if there is a worker
};

struct PlacementWish {
    Role role = Role::both;
    bool needs_worker = false;
    /// The application's thread does not spin, so that it can share the only CPU of a machine with the worker.
    bool takes_turns = false;
    std::set<std::uint32_t> allowed;  ///< CPUs that this process may use
    /// The CPUs that a configuration gives to workers, beginning with the measured worker. May be empty.
    std::vector<std::uint32_t> workers;
    std::optional<std::uint32_t> core;         ///< --core
    std::optional<std::uint32_t> worker_core;  ///< --worker-core
};

/// Chooses the CPUs. A client takes the lowest CPUs and a server takes the highest, so that both can run on one
/// machine. Throws UsageError if the wish cannot be granted.
[[nodiscard]] Placement place(const PlacementWish& wish);

}  // namespace pollcore::perf
