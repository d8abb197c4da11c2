// The report for people: tables as text.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// No line of text_report() is wider.
inline constexpr std::size_t kReportColumns = 120;

/// Appends the words to lines that begin with the prefix, or below it with as many spaces.
void wrap(std::string& text, std::string_view prefix, std::string_view words);

/// A measurement's name in sentences and tables: "send, 2 bytes, direct". Other transports than RC are named, too.
[[nodiscard]] std::string label(const Measurement& measurement);

/// The settings, and all figures that a person can use. Of the settings, it uses `core` and `worker-core`, the CPUs of
/// the application's thread and of the worker, and `report_gbits`, which if `yes` makes the unit of bandwidths Gb/sec.
[[nodiscard]] std::string text_report(const Results& results);

/// A short report of latencies for first-time readers. The measurement had both ends in one process. It uses the
/// settings `core` and `worker-core`; without them, the CPUs are those of the raw round trip.
[[nodiscard]] std::string brief_report(const Results& results);

}  // namespace pollcore::perf
