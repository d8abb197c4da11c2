// The time that work requests spend in each stage. Only a sample of the requests is measured. cycles.hpp converts
// cycles into nanoseconds.
//
// Thread safety: a LatencyCounters has one writer and any number of readers; the other types are plain data.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "pollcore/counter.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

/// A histogram of durations, in cycles of the time stamp counter, up to 2^32. Each power of two has four buckets, so a
/// bucket's upper bound is at most a quarter above its lower bound. Holds plain counts, copied from a LatencyCounters.
struct LatencyHistogram {
    static constexpr unsigned kSubBits = 2;
    static constexpr std::size_t kBuckets = (32 - kSubBits + 1) << kSubBits;

    std::array<std::uint64_t, kBuckets> counts{};

    [[nodiscard]] static constexpr std::size_t bucket_of(std::uint32_t cycles) noexcept {
        if (cycles >> kSubBits == 0) {
            return cycles;
        }
        const auto shift = static_cast<unsigned>(std::bit_width(cycles)) - 1 - kSubBits;
        return (std::size_t{shift} << kSubBits) + (cycles >> shift);
    }
    /// The smallest duration of a bucket.
    [[nodiscard]] static constexpr std::uint64_t least_of(std::size_t bucket) noexcept {
        const std::size_t shift = bucket >> kSubBits;
        return shift < 2 ? bucket : (std::uint64_t{bucket & ((1u << kSubBits) - 1)} + (1u << kSubBits)) << (shift - 1);
    }

    LatencyHistogram& operator+=(const LatencyHistogram& other) noexcept {
        for (std::size_t i = 0; i < counts.size(); ++i) {
            counts[i] += other.counts[i];
        }
        return *this;
    }
    /// Subtracts an earlier copy. The result has only the durations that were counted since that copy.
    LatencyHistogram& operator-=(const LatencyHistogram& earlier) noexcept {
        for (std::size_t i = 0; i < counts.size(); ++i) {
            counts[i] -= earlier.counts[i];
        }
        return *this;
    }

    [[nodiscard]] std::uint64_t count() const noexcept {
        std::uint64_t sum = 0;
        for (const std::uint64_t n : counts) {
            sum += n;
        }
        return sum;
    }
    /// The duration, in cycles, that `fraction` (0 to 1) of the samples do not exceed. The result is the upper bound of
    /// a bucket, so it is at most a quarter too high. Returns 0 if there are no samples.
    [[nodiscard]] std::uint64_t percentile(double fraction) const noexcept {
        const auto wanted = static_cast<double>(count()) * fraction;
        std::uint64_t below = 0;
        for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
            below += counts[bucket];
            if (below != 0 && static_cast<double>(below) >= wanted) {
                return least_of(bucket + 1) - 1;
            }
        }
        return 0;
    }
};
static_assert(LatencyHistogram::bucket_of(0xffffffff) == LatencyHistogram::kBuckets - 1);

/// A histogram to which one thread adds durations. Any thread may read it.
struct alignas(kCacheLine) LatencyCounters {
    std::array<Counter, LatencyHistogram::kBuckets> counts;

    /// Counts the time from `since` to `until`, two readings of the lower half of the time stamp counter. The time must
    /// be less than 2^32 - 2^20 cycles. If `until` is a little before `since`, because another CPU's counter is behind,
    /// the time counts as 0.
    void add(std::uint32_t since, std::uint32_t until) noexcept {
        constexpr std::uint32_t kBehindMost = 1u << 20;
        const std::uint32_t cycles = until - since;
        counts[LatencyHistogram::bucket_of(cycles > 0u - kBehindMost ? 0 : cycles)].add();
    }
    [[nodiscard]] LatencyHistogram read() const noexcept {
        LatencyHistogram histogram;
        for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
            histogram.counts[i] = counts[i].value();
        }
        return histogram;
    }
};

/// A session follows one send-queue request in this many, on average: it measures the request's time in each stage.
inline constexpr std::uint64_t kLatencySampleEvery = 253;

/// Histograms of the time that the followed requests of a session spent in each stage. In the stages `device` and
/// `completion_ring`, only one request of a session is followed at a time. While a slow request is there, other
/// requests are not counted in these stages.
struct StageLatency {
    /// From try_submit until the worker puts the request into its queue pair's chain. Includes the time that the
    /// request waits for flow control.
    LatencyHistogram submission_ring;
    /// From the queue pair's chain until the worker finds the work completion. Only signaled sends that succeeded are
    /// counted.
    LatencyHistogram device;
    LatencyHistogram completion_ring;  ///< from the worker's finding the work completion until poll() returns it

    StageLatency& operator+=(const StageLatency& other) noexcept {
        submission_ring += other.submission_ring;
        device += other.device;
        completion_ring += other.completion_ring;
        return *this;
    }
    StageLatency& operator-=(const StageLatency& earlier) noexcept {
        submission_ring -= earlier.submission_ring;
        device -= earlier.device;
        completion_ring -= earlier.completion_ring;
        return *this;
    }
};

}  // namespace pollcore
