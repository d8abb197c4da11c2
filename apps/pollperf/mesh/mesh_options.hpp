// The options of pollperf-mesh on one rank: checked, complete, and with all defaults.
//
// Thread safety: plain values, and pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/cpus.hpp"
#include "pollperf/mesh/mesh_command_line.hpp"
#include "pollperf/options.hpp"

namespace pollcore::perf {

/// Where a rank runs.
struct RankPlace {
    int ranks = 1;        ///< of the whole job
    int local_rank = 0;   ///< among the ranks of this host
    int local_ranks = 1;  ///< on this host
    config::Cpus cpus;    ///< `bound`: by MPI
};

struct MeshOptions {
    TestOptions latency;    ///< of one connection; the place is that of all measurements
    TestOptions bandwidth;  ///< at that place, with the operation, the size and the depth of bandwidth
    bool with_latency = true;
    bool with_bandwidth = true;
    bool with_incast = true;
    bool with_all_to_all = true;
    std::optional<int> incast_to;
    std::uint64_t iterations = 0;  ///< of latency and bandwidth; 0: by duration
    std::chrono::nanoseconds duration{};
    bool serial = false;
    double outlier = 0.2;  ///< as a share of the median

    [[nodiscard]] PathKind path() const noexcept { return latency.paths.front(); }
    [[nodiscard]] std::uint32_t core() const noexcept { return latency.cores.front(); }
    [[nodiscard]] Op op() const noexcept { return bandwidth.ops.front(); }
    [[nodiscard]] std::uint32_t size() const noexcept { return bandwidth.sizes.front(); }
    [[nodiscard]] std::uint32_t latency_size() const noexcept { return latency.sizes.front(); }
};

/// Throws UsageError, or ConfigError for a mistake in the configuration file.
[[nodiscard]] MeshOptions resolve(const MeshArguments& arguments, const RankPlace& place);

/// Name and value of each setting that all ranks have in common.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> settings_of(const MeshOptions& options);

}  // namespace pollcore::perf
