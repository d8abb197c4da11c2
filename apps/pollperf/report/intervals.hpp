// What the rounds of a measurement say about its figures: how far they would spread if it were repeated.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

struct Interval {
    double low = 0;
    double median = 0;
    double high = 0;
};

/// With fewer rounds than these, the bounds of an interval would be no more than the least and the greatest round.
inline constexpr std::size_t kRoundsForInterval = 6;

/// The median of the values, and the interval in which it lies with a probability of 95 %. The interval is that of the
/// percentile bootstrap (Efron): the medians of 2000 samples that are drawn from the values with replacement. The draws
/// are the same in each call, so that one result has one interval. Returns nullopt below kRoundsForInterval values.
[[nodiscard]] std::optional<Interval> bootstrap_median(std::span<const double> values);

/// The value below which `fraction` (0 to 1) of the values lie, with linear interpolation between neighbours. There is
/// at least one value.
[[nodiscard]] double quantile(std::vector<double> values, double fraction);

/// The figure by which one measurement is compared with another.
enum class Figure : std::uint8_t { typical_ns, bytes_per_s, operations_per_s };

/// A latency test is compared by its typical latency, a bandwidth test by its bytes, a rate test by its operations.
[[nodiscard]] Figure main_figure(const Measurement& measurement) noexcept;
/// The figure's key in the JSON: "typical_ns".
[[nodiscard]] std::string_view figure_name(Figure figure) noexcept;

/// The main figure of each round that has one. A round knows only what this end did. If both ends send, the function
/// scales the rates, so that the rounds together have the rate of both directions.
[[nodiscard]] std::vector<double> round_values(const Measurement& measurement);

}  // namespace pollcore::perf
