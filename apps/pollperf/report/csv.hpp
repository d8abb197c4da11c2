// The report for spreadsheets.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// A line with the names of the columns, and a line for each measurement (RFC 4180: lines end with CR and LF). Names
/// have the units that the keys of the JSON have (../FORMAT.md), and mean the same. Columns keep their names and their
/// order; a later version may add some at the end. A figure that was not measured is an empty field; a "whether" is 0
/// or 1; numbers have no exponent.
[[nodiscard]] std::string csv(const Results& results);

}  // namespace pollcore::perf
