// Snapshots as JSON, for programs.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "choice.hpp"
#include "pollcore/statistics.hpp"

namespace pollcore::stat {

/// One line: {"runtime": ..., "tables": {"worker": [{"name": "worker0", "steps": 1, ...}, ...], ...}}. Values are as in
/// the segment: cycles are cycles.
[[nodiscard]] std::string json_of(const statistics::Snapshot& snapshot);
[[nodiscard]] std::string list_json(const std::vector<Found>& all);

}  // namespace pollcore::stat
