// The results of `pollperf wake` for programs: one JSON object. Keys name the unit of their times, as `latency_ns`
// does.
//
// Thread safety: a pure function.
#pragma once

#include <string>

#include "wake.hpp"

namespace pollcore::perf {

[[nodiscard]] std::string json_report(const WakeOptions& options, const WakeResults& results);

}  // namespace pollcore::perf
