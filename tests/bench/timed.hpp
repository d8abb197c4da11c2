// Times the parts of a round, in cycles of the time stamp counter.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "apps/pollperf/cycle_stamp.hpp"
#include "measurement.hpp"

namespace pollcore::bench {

/// Returns the mean of the middle half. The time stamp counter of some machines moves in steps of 26 cycles; a median
/// would then be a multiple of 26.
[[nodiscard]] inline double middle(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
    const auto end = values.end() - static_cast<std::ptrdiff_t>(values.size() / 4);
    return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

/// Returns the cycles that a stamp itself takes: the difference of two consecutive stamps.
[[nodiscard]] inline double stamp_cost() {
    std::vector<double> costs;
    for (int i = 0; i < 1000; ++i) {
        const std::uint64_t before = perf::stamp();
        costs.push_back(static_cast<double>(perf::stamp() - before));
    }
    return middle(std::move(costs));
}

inline constexpr std::size_t kRounds = 2000;

/// Returns the cycles per operation that each part takes, from many bursts.
template <std::size_t N, class... Parts>
[[nodiscard]] std::array<double, N> timed(std::uint32_t burst, Parts... parts) {
    static_assert(sizeof...(parts) == N);
    constexpr std::size_t kWarmUp = 200;
    std::array<std::vector<double>, N> cycles;
    const double nothing = stamp_cost();
    for (std::size_t round = 0; round < kWarmUp + kRounds; ++round) {
        std::uint64_t before = perf::stamp();
        std::size_t part = 0;
        const auto run = [&](auto& what) {
            what();
            const std::uint64_t after = perf::stamp();
            if (round >= kWarmUp) {
                cycles[part].push_back(static_cast<double>(after - before) - nothing);
            }
            before = after;
            ++part;
        };
        (run(parts), ...);
    }
    std::array<double, N> per_operation;
    for (std::size_t i = 0; i < N; ++i) {
        per_operation[i] = middle(std::move(cycles[i])) / burst;
    }
    return per_operation;
}

}  // namespace pollcore::bench
