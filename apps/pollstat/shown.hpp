// What a person wants to see of two snapshots: values in people's units, how much counters grew in a second, and values
// that follow from several fields.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pollcore/statistics.hpp"

namespace pollcore::stat {

/// The unit of a value that time_text() shows.
inline constexpr const char* kDate = "date";

struct ShownField {
    std::string name;
    statistics::Kind kind{};
    std::string unit;  ///< such as "ns", or kDate, or empty
};

struct ShownValue {
    std::string text;  ///< of a text
    /// Of all others. A histogram has several. A latency has three: its median, its 99th percentile, and how many
    /// durations there were, all since the snapshot before.
    std::vector<double> total;
    double rate = 0;  ///< of a counter: growth in a second
};

struct ShownTable {
    std::string name;
    std::vector<ShownField> fields;
    std::vector<std::vector<ShownValue>> rows;

    [[nodiscard]] std::optional<std::size_t> field(std::string_view name) const noexcept;
};

/// `before` is an earlier snapshot of the same segment. Rows of things that it does not have get the rate 0. Cycles are
/// given in nanoseconds. Workers get the field "busy": the share of the time between the snapshots in which the worker
/// had work. Texts are printable.
[[nodiscard]] std::vector<ShownTable> shown(const statistics::Snapshot& before, const statistics::Snapshot& now);

}  // namespace pollcore::stat
