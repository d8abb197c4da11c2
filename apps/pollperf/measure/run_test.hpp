// `pollperf lat`, `bw` and `rate`: makes the connections, and measures one thing after the other.
//
// Thread safety: one thread calls run_test().
#pragma once

#include "pollperf/options.hpp"
#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// Throws MeasurementError, UsageError for what only shows when the device is open, or pollcore::Error.
[[nodiscard]] Results run_test(const TestOptions& options);

}  // namespace pollcore::perf
