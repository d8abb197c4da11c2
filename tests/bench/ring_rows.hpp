// The names of rows that goals look up.
#pragma once

#include <string>

namespace pollcore::bench {

inline constexpr const char* kOurs = "pollcore";
inline constexpr const char* kStreamLimit = "limit: stream";
inline constexpr const char* kTwoLines = "limit: two lines";
inline constexpr const char* kTwoLinesHasty = "limit: two lines, looked at as fast as can be";

/// Returns true if the row shows a ring from another project.
[[nodiscard]] inline bool is_other(const std::string& row) {
    return !row.starts_with(kOurs) && !row.starts_with("limit");
}

}  // namespace pollcore::bench
