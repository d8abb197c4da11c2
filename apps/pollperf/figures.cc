#include "figures.hpp"

#include <algorithm>
#include <cmath>

namespace pollcore::perf {

std::uint64_t percentile(std::span<const std::uint64_t> ascending, std::uint32_t per_10000) noexcept {
    // Computed with integers, because 0.9999 * 10000 must not become 9998.999.
    const std::uint64_t rank = (static_cast<std::uint64_t>(ascending.size()) * per_10000 + 9999) / 10000;
    return ascending[rank == 0 ? 0 : rank - 1];
}

double median(std::span<const std::uint64_t> ascending) noexcept {
    const std::size_t n = ascending.size();
    const auto upper = static_cast<double>(ascending[n / 2]);
    return n % 2 != 0 ? upper : (static_cast<double>(ascending[n / 2 - 1]) + upper) / 2;
}

Summary summarize(std::vector<std::uint64_t> samples, double ns_per_cycle) {
    Summary summary;
    summary.count = samples.size();
    if (samples.empty()) {
        return summary;
    }
    std::sort(samples.begin(), samples.end());
    double sum = 0;
    for (const std::uint64_t sample : samples) {
        sum += static_cast<double>(sample);
    }
    const double average = sum / static_cast<double>(samples.size());
    // Computed in a second pass over the samples. The sum of squares minus the square of the sum would lose all digits
    // if the samples are close to each other.
    double squares = 0;
    for (const std::uint64_t sample : samples) {
        const double off = static_cast<double>(sample) - average;
        squares += off * off;
    }
    const auto ns = [&](auto cycles) { return static_cast<double>(cycles) * ns_per_cycle; };
    summary.min = ns(samples.front());
    summary.max = ns(samples.back());
    summary.typical = ns(median(samples));
    summary.average = ns(average);
    summary.stdev = ns(std::sqrt(squares / static_cast<double>(samples.size())));
    summary.p99 = ns(percentile(samples, 9900));
    summary.p999 = ns(percentile(samples, 9990));
    summary.p9999 = ns(percentile(samples, 9999));
    return summary;
}

}  // namespace pollcore::perf
