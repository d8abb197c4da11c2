// Latencies in the text of HdrHistogram's percentile distributions, which its plotter reads (plotFiles.html).
//
// Thread safety: pure functions.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// The percentile distribution of the latencies, in microseconds.
[[nodiscard]] std::string hdr_text(const Measurement& measurement);

/// The files of all measurements, each with its content: `path` itself if there is one measurement, else a file for
/// each, whose name has the operation, the size and the path before the extension ("out-send-2-direct.hgrm").
[[nodiscard]] std::vector<std::pair<std::filesystem::path, std::string>> hdr_files(const std::filesystem::path& path,
                                                                                   const Results& results);

}  // namespace pollcore::perf
