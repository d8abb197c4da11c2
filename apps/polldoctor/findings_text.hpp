// The findings for people: a table of at most 120 columns, and the round trips between cores as a matrix.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "facts.hpp"
#include "finding.hpp"

namespace pollcore::doctor {

/// The worst findings come first. Those that are ok are only named, unless `all`.
[[nodiscard]] std::string findings_text(const Facts& facts, const std::vector<Finding>& findings, bool all);
/// The round trips in ns, a row and a column for each core. Empty if none was measured.
[[nodiscard]] std::string round_trip_matrix(const Facts& facts);

}  // namespace pollcore::doctor
