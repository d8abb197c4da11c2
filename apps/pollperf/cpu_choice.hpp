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
    std::uint32_t core = 0;    ///< the application's
    std::uint32_t worker = 0;  ///< the worker's, if there is one
};

struct PlacementWish {
    Role role = Role::both;
    bool needs_worker = false;
    /// The application's thread does not spin: if there is only one CPU, thread and worker share it.
    bool takes_turns = false;
    std::set<std::uint32_t> allowed;  ///< CPUs of this process
    /// Workers' CPUs in a configuration, the measured worker's first; may be empty.
    std::vector<std::uint32_t> workers;
    std::optional<std::uint32_t> core;         ///< --core
    std::optional<std::uint32_t> worker_core;  ///< --worker-core
};

/// A client takes CPUs from the front and a server from the back, so that the two can share a machine. Throws
/// UsageError when the wish cannot be granted.
[[nodiscard]] Placement place(const PlacementWish& wish);

}  // namespace pollcore::perf
