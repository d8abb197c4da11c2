// Which CPU is whose.
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
    bool takes_turns =
        false;  ///< the application's thread does not spin: where there is one CPU, the worker has it, too
    std::set<std::uint32_t> allowed;           ///< CPUs of this process
    std::vector<std::uint32_t> workers;        ///< fixed by a configuration, the measured one first; may be empty
    std::optional<std::uint32_t> core;         ///< --core
    std::optional<std::uint32_t> worker_core;  ///< --worker-core
};

/// A client takes CPUs from the front and a server from the back, so that the two can share a machine. Throws
/// UsageError when the wish cannot be granted.
[[nodiscard]] Placement place(const PlacementWish& wish);

}  // namespace pollcore::perf
