// The report for people: tables as text.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "options.hpp"
#include "results.hpp"

namespace pollcore::perf {

[[nodiscard]] std::string report(const LatOptions& options, const LatResults& results);
/// A short report for first-time readers. The measurement must have both ends in one process.
[[nodiscard]] std::string brief_report(const LatOptions& options, const LatResults& results);

}  // namespace pollcore::perf
