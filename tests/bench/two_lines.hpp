// Measures how long a word takes to another CPU and back. The stores and loads have the memory order of a ring, and
// there is nothing else, so no ring can be faster.
//
// Thread safety: one thread at a time may call two_lines().
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "apps/pollperf/cycle_stamp.hpp"
#include "apps/pollperf/figures.hpp"
#include "arena.hpp"
#include "base/clock.hpp"
#include "base/look.hpp"
#include "pollcore/limits.hpp"
#include "pollcore/spsc_ring.hpp"
#include "two_cpus.hpp"

namespace pollcore::bench {

/// Two words on cache lines that are not adjacent, because some prefetchers fetch adjacent lines in pairs.
struct Words {
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> ping{0};
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> pong{0};
};
/// Two words on one cache line.
struct SharedWords {
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> ping{0};
    std::atomic<std::uint64_t> pong{0};
};

/// A way to wait for a line that the other CPU writes: see base/look.hpp.
struct Waits {
    /// True if a CPU, before its first look, waits until its own stores are visible and prefetches the line of its next
    /// store.
    bool settles = false;
    std::uint32_t before = 0;   ///< cycles before the first look
    std::uint32_t between = 0;  ///< cycles between two looks

    void begin() const noexcept {
        if (settles) {
            settle_stores();
        }
        if (before != 0) {
            delay_look(before);
        }
    }
    void again() const noexcept {
        if (between != 0) {
            delay_look(between);
        }
    }
};
/// Both sides look as fast as they can.
inline constexpr Waits kNoWaits{};
/// Ways to wait. The best way differs between near and far CPUs, and between machines.
inline constexpr std::array kAllWaits{
    kNoWaits, Waits{true, 0, 20}, Waits{true, 30, 20}, Waits{true, 60, 20}, Waits{true, 130, 50}, Waits{true, 200, 50}};

/// Calls `trip(time, waits)` with each of kAllWaits and returns the best figures.
template <class Trip>
[[nodiscard]] std::vector<double> with_best_waits(std::chrono::nanoseconds time, Trip trip) {
    std::vector<double> best;
    for (const Waits& waits : kAllWaits) {
        std::vector<double> figures = trip(time / kAllWaits.size(), waits);
        if (best.empty() || figures.front() < best.front()) {
            best = std::move(figures);
        }
    }
    return best;
}

/// Returns the median and the 99th percentile, in nanoseconds.
[[nodiscard]] inline std::vector<double> trip_figures(std::vector<std::uint64_t> trips) {
    // The clocks of some processors advance in steps of 10 ns, so each reading is rounded. The median is computed from
    // groups of consecutive trips, because only the beginning and the end of a group are rounded.
    constexpr std::size_t kGroup = 16;
    std::vector<std::uint64_t> groups;
    for (std::size_t at = 0; at + kGroup <= trips.size(); at += kGroup) {
        groups.push_back(std::accumulate(trips.begin() + static_cast<std::ptrdiff_t>(at),
                                         trips.begin() + static_cast<std::ptrdiff_t>(at + kGroup), std::uint64_t{0}));
    }
    return {perf::summarize(std::move(groups), 1 / (cycles_per_ns() * kGroup)).typical,
            perf::summarize(std::move(trips), 1 / cycles_per_ns()).p99};
}

/// Returns the cycles of each trip. `trip(i)` makes one round trip.
template <class Trip>
[[nodiscard]] std::vector<std::uint64_t> timed_trips(std::chrono::nanoseconds time, Trip trip) {
    constexpr std::uint64_t kWarmUp = 1000;
    constexpr std::uint64_t kMost = 1u << 18;
    std::vector<std::uint64_t> trips;
    trips.reserve(kMost);
    std::uint64_t next = 0;
    for (; next < kWarmUp; ++next) {
        trip(next);
    }
    std::uint64_t began = perf::stamp();
    const std::uint64_t until = began + cycles_from(time);
    while (trips.size() < kMost && began < until) {
        trip(next++);
        const std::uint64_t now = perf::stamp();
        trips.push_back(now - began);
        began = now;
    }
    return trips;
}

/// Measures round trips over many pairs of words in turn, because a line's time between two CPUs depends on its address
/// and may differ by a fifth. `kTurn` consecutive trips use the same pair and find it in the first-level cache of each
/// CPU. A ring uses another slot for each trip, so kTurn = 1 is the limit for a ring. Returns trip_figures().
template <class Pair, std::uint64_t kPairs, std::uint64_t kTurn>
[[nodiscard]] std::vector<double> two_lines(const Cpus& cpus, std::chrono::nanoseconds time, const Waits& waits) {
    constexpr std::uint64_t kStop = ~std::uint64_t{0};
    auto* const pairs = new (arena(kPairs * sizeof(Pair))) Pair[kPairs];
    const auto of = [pairs](std::uint64_t i) -> Pair& { return pairs[i / kTurn % kPairs]; };
    const auto ask_for = [waits](const std::atomic<std::uint64_t>& word) {
        if (waits.settles) {
            ring_detail::prefetch_for_write(&word);
        }
    };
    std::vector<std::uint64_t> trips;
    run_pair(
        cpus,
        [&trips, time, of, ask_for, waits] {
            std::uint64_t last = 0;
            trips = timed_trips(time, [&](std::uint64_t i) {
                of(i).ping.store(i + 1, std::memory_order_release);
                ask_for(of(i + 1).ping);
                waits.begin();
                while (of(i).pong.load(std::memory_order_acquire) != i + 1) {
                    waits.again();
                }
                last = i + 1;
            });
            of(last).ping.store(kStop, std::memory_order_release);
        },
        [of, ask_for, waits] {
            for (std::uint64_t i = 0;; ++i) {
                std::uint64_t seen = 0;
                ask_for(of(i).pong);
                waits.begin();
                while ((seen = of(i).ping.load(std::memory_order_acquire)) != i + 1) {
                    if (seen == kStop) {
                        return;
                    }
                    waits.again();
                }
                of(i).pong.store(i + 1, std::memory_order_release);
            }
        });
    return trip_figures(std::move(trips));
}

/// Measures the limit for any ring: each trip uses other lines, and both CPUs wait in the best way.
[[nodiscard]] inline std::vector<double> best_two_lines(const Cpus& cpus, std::chrono::nanoseconds time) {
    return with_best_waits(time, [&cpus](std::chrono::nanoseconds part, const Waits& waits) {
        return two_lines<Words, 1024, 1>(cpus, part, waits);
    });
}

}  // namespace pollcore::bench
