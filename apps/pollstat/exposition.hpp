// Writes Prometheus' text exposition format, version 0.0.4.
//
// Names, label values and figures may come from an enemy. Whatever they are, the text stays well-formed: a single bad
// line would make Prometheus reject the metrics of all runtimes.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "time_buckets.hpp"

namespace pollcore::stat {

/// Names and values, in the order in which they are printed.
using Labels = std::vector<std::pair<std::string, std::string>>;
using MetricValue = std::variant<std::uint64_t, double>;

class Exposition {
public:
    /// What is added from now on has these labels in front of its own. It may be this many samples at most. Two sources
    /// must differ in these labels.
    void begin_source(Labels common, std::size_t samples_max);

    // Each name is a metric's without its unit and ending. Characters that a name may not have become '_'. A sample is
    // left out if its series is there already, if the metric has another type, or if the source has too many.
    void add_counter(std::string_view name, std::string_view help, const Labels& labels, MetricValue value);
    void add_gauge(std::string_view name, std::string_view help, const Labels& labels, MetricValue value);
    void add_histogram(std::string_view name, std::string_view help, const Labels& labels, const Buckets& buckets);

    [[nodiscard]] std::size_t samples_of_source() const noexcept { return samples_; }
    [[nodiscard]] std::size_t left_out_of_source() const noexcept { return left_out_; }
    /// The metrics in the order of their names.
    [[nodiscard]] std::string text() const;

private:
    struct Family {
        std::string_view type;
        std::string help;
        std::string samples;
    };
    /// Null if the metric has another type.
    Family* family(const std::string& name, std::string_view type, std::string_view help);
    void add_simple(const std::string& name, std::string_view type, std::string_view help, const Labels& labels,
                    MetricValue value);
    /// "name{labels}", or an empty text if the series may not be added.
    std::string series(const std::string& name, const std::string& labels);
    [[nodiscard]] std::string labels_text(const Labels& labels) const;

    std::map<std::string, Family> families_;
    Labels common_;
    std::unordered_set<std::string> seen_;  // series of this source
    std::size_t samples_max_ = 0;
    std::size_t samples_ = 0;
    std::size_t left_out_ = 0;
};

/// The text as a part of a metric's or a label's name.
[[nodiscard]] std::string metric_name(std::string_view text);
/// The text as a label's value, between quotes. What is not UTF-8, and control bytes but the newline, are shown as
/// \xNN. A long text is cut.
[[nodiscard]] std::string label_value(std::string_view text);

}  // namespace pollcore::stat
