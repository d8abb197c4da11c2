// The names of rows that others look for.
#pragma once

#include <string>

namespace pollcore::bench {

inline constexpr const char* kOurs = "pollcore";
inline constexpr const char* kStreamLimit = "limit: stream";
inline constexpr const char* kTwoLines = "limit: two lines";
inline constexpr const char* kTwoLinesHasty = "limit: two lines, looked at as fast as can be";

/// A ring that others have made.
[[nodiscard]] inline bool is_other(const std::string& row) {
    return !row.starts_with(kOurs) && !row.starts_with("limit");
}

}  // namespace pollcore::bench
