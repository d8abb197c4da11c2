// `pollperf lat`: sets a latency measurement up, runs it, and returns the results.
//
// Thread safety: the calling thread is the one that measures.
#pragma once

#include "options.hpp"
#include "results.hpp"

namespace pollcore::perf {

/// Throws UsageError, MeasurementError or pollcore::Error.
[[nodiscard]] LatResults run_lat(LatOptions options);

}  // namespace pollcore::perf
