// `pollperf lat`: sets up a latency measurement, runs it, and returns the results.
//
// Thread safety: the calling thread measures.
#pragma once

#include "options.hpp"
#include "results.hpp"

namespace pollcore::perf {

/// Throws UsageError, MeasurementError or pollcore::Error.
[[nodiscard]] LatResults run_lat(LatOptions options);

}  // namespace pollcore::perf
