// The findings as JSON, for programs.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "facts.hpp"
#include "finding.hpp"

namespace pollcore::doctor {

/// An object with "checks" (all that there are), "findings", "workers", "round_trips_ns" and "severity", the worst one.
/// A later version may have more members; "format" changes only if a member changes its meaning.
[[nodiscard]] std::string findings_json(const Facts& facts, const std::vector<Finding>& findings);

}  // namespace pollcore::doctor
