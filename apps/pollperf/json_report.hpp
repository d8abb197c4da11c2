// The report for programs: one JSON object with everything that was measured. Times are in nanoseconds.
//
// Thread safety: pure functions, but for the file.
#pragma once

#include <filesystem>
#include <string>

#include "options.hpp"
#include "results.hpp"

namespace pollcore::perf {

[[nodiscard]] std::string json_report(const LatOptions& options, const LatResults& results);
/// Throws pollcore::Error when the file cannot be written.
void write_json(const std::filesystem::path& file, const LatOptions& options, const LatResults& results);

}  // namespace pollcore::perf
