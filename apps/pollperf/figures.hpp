// Computes the figures of a report from samples.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pollcore::perf {

/// All times are in nanoseconds.
struct Summary {
    std::size_t count = 0;
    double min = 0;
    double max = 0;
    double typical = 0;  ///< median; with an even number of samples the mean of the middle two
    double average = 0;
    double stdev = 0;  ///< standard deviation of these samples: the sum of squares is divided by their number
    double p99 = 0;    ///< the smallest sample that at least 99% of all samples do not exceed
    double p999 = 0;
    double p9999 = 0;
};

/// The smallest sample that at least `per_10000` of 10000 samples do not exceed. `ascending` has at least one sample,
/// in ascending order.
[[nodiscard]] std::uint64_t percentile(std::span<const std::uint64_t> ascending, std::uint32_t per_10000) noexcept;
[[nodiscard]] double median(std::span<const std::uint64_t> ascending) noexcept;

/// `samples` are in cycles; a cycle counts as `ns_per_cycle` nanoseconds. Sorts a copy.
[[nodiscard]] Summary summarize(std::vector<std::uint64_t> samples, double ns_per_cycle);

}  // namespace pollcore::perf
