// Demands on the figures of a run, for scripts that judge by the exit code.
//
// Thread safety: pure functions; read_baseline() reads a file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// Each demand holds for every measurement of a run.
struct Demands {
    std::optional<double> bytes_per_s_least;
    std::optional<double> operations_per_s_least;
    std::optional<double> p99_ns_most;
    std::optional<nlohmann::json> baseline;  ///< from read_baseline()
    double tolerance = 0.05;                 ///< how much worse than the baseline a figure may be, as a share of it
};

/// Reads the JSON of an earlier run. Throws std::invalid_argument, with a sentence that names the file, if there is no
/// such file, or it is not the JSON of `pollperf lat`, `bw` or `rate` in this version's format, or a result has nothing
/// to compare with.
[[nodiscard]] nlohmann::json read_baseline(const std::filesystem::path& path);

/// Whether the baseline is of this test and has results.
[[nodiscard]] bool comparable(const nlohmann::json& baseline, Test test);

/// A sentence for each demand that a measurement has missed, and for each figure that is worse than the baseline's: the
/// typical and the 99 % latency of a latency test, the bytes of a bandwidth test, the operations of a rate test. A
/// measurement without samples misses all demands. A result of the baseline that this run has not measured is missed,
/// too; but this run may have measured more. Empty: all demands are met.
[[nodiscard]] std::vector<std::string> missed(const Results& results, const Demands& demands);

}  // namespace pollcore::perf
