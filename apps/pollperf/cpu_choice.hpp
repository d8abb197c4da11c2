// Chooses the CPUs of the application's thread and of the worker.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "pollperf/measure/workload.hpp"

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
    std::set<std::uint32_t> bound{};  ///< those in `allowed` that taskset(1) and the like gave it: they come first
    /// The CPUs that a configuration gives to workers, beginning with the measured worker. May be empty.
    std::vector<std::uint32_t> workers;
    std::optional<std::uint32_t> core;         ///< --core
    std::optional<std::uint32_t> worker_core;  ///< --worker-core
};

/// Chooses the CPUs. A client takes the lowest CPUs and a server takes the highest, so that both can run on one
/// machine; either takes those to which it is bound first. Throws UsageError if the wish cannot be granted.
[[nodiscard]] Placement place(const PlacementWish& wish);

struct MoreCpus {
    std::uint32_t first = 0;  ///< already chosen
    std::uint32_t wanted = 1;
    std::set<std::uint32_t> allowed;
    std::set<std::uint32_t> bound{};   ///< come first
    std::set<std::uint32_t> taken;     ///< by others
    std::vector<std::uint32_t> named;  ///< on the command line; empty, or as many as are wanted
    bool may_share = false;            ///< threads that give up their CPU while they wait may share one
    const char* option = "";
    const char* what = "";
};
/// Chooses a CPU for each of several threads, the first of which is chosen. Throws UsageError if there are too few.
[[nodiscard]] std::vector<std::uint32_t> more_cpus(const MoreCpus& wish);

}  // namespace pollcore::perf
