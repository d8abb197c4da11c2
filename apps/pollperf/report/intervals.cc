#include "pollperf/report/intervals.hpp"

#include <algorithm>
#include <random>

namespace pollcore::perf {
namespace {

constexpr std::size_t kResamples = 2000;
constexpr double kOutside = 0.05;  // the share of the resamples' medians that lie outside the interval

// Reorders the values.
double median_of(std::span<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return values.size() % 2 != 0 ? *middle : (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace

double quantile(std::vector<double> values, double fraction) {
    std::ranges::sort(values);
    const double at = fraction * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

std::optional<Interval> bootstrap_median(std::span<const double> values) {
    if (values.size() < kRoundsForInterval) {
        return std::nullopt;
    }
    // The modulo is used instead of a distribution of the library, whose draws differ from library to library.
    std::mt19937_64 random(20261129);
    std::vector<double> sample(values.size());
    std::vector<double> medians(kResamples);
    for (double& median : medians) {
        std::ranges::generate(sample, [&] { return values[random() % values.size()]; });
        median = median_of(sample);
    }
    sample.assign(values.begin(), values.end());
    return Interval{.low = quantile(medians, kOutside / 2),
                    .median = median_of(sample),
                    .high = quantile(medians, 1 - kOutside / 2)};
}

Figure main_figure(const Measurement& measurement) noexcept {
    switch (measurement.test) {
        case Test::lat: return Figure::typical_ns;
        case Test::bw: return Figure::bytes_per_s;
        case Test::rate: return Figure::operations_per_s;
    }
    return Figure::typical_ns;
}

std::string_view figure_name(Figure figure) noexcept {
    switch (figure) {
        case Figure::typical_ns: return "typical_ns";
        case Figure::bytes_per_s: return "bytes_per_s";
        case Figure::operations_per_s: return "operations_per_s";
    }
    return "?";
}

std::vector<double> round_values(const Measurement& measurement) {
    const Figure figure = main_figure(measurement);
    const double own = measurement.seconds > 0 ? static_cast<double>(measurement.operations) / measurement.seconds : 0;
    const double both = own > 0 ? measurement.operations_per_s() / own : 1;
    std::vector<double> values;
    for (const Round& round : measurement.rounds) {
        if (figure == Figure::typical_ns) {
            if (round.median_ns > 0) {
                values.push_back(round.median_ns);
            }
        } else if (round.seconds > 0) {
            const double per_s = both * static_cast<double>(round.operations) / round.seconds;
            values.push_back(figure == Figure::bytes_per_s ? per_s * measurement.size : per_s);
        }
    }
    return values;
}

}  // namespace pollcore::perf
