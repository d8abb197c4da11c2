// The report for programs: one JSON object with all results. Keys name the unit of their times, as `latency_ns` does.
//
// Thread safety: pure functions; only write_json() writes a file.
#pragma once

#include <filesystem>
#include <string>

#include "options.hpp"
#include "results.hpp"
#include "wake.hpp"

namespace pollcore::perf {

[[nodiscard]] std::string json_report(const LatOptions& options, const LatResults& results);
[[nodiscard]] std::string json_report(const WakeOptions& options, const WakeResults& results);
/// Throws pollcore::Error when the file cannot be written.
void write_json(const std::filesystem::path& file, const std::string& report);

}  // namespace pollcore::perf
