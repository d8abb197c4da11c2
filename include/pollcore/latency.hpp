// How long work requests took, stage by stage, in a sample of them.
//
// Thread safety: as said of each.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "pollcore/counter.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

/// A histogram of durations, in cycles of the time stamp counter, up to 2^32. Each power of two has four buckets, so a
/// bucket's bounds are at most a quarter apart. Holds plain counts, as copied from a LatencyCounters.
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
    /// Subtracts an earlier copy: the durations counted since then are left.
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
    /// The duration that the part `fraction` (0 to 1) of the samples does not exceed, in cycles. It is the upper bound
    /// of a bucket, so at most a quarter too much. 0 without samples.
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

/// A histogram that is being counted: one thread writes, any thread reads.
struct alignas(kCacheLine) LatencyCounters {
    std::array<Counter, LatencyHistogram::kBuckets> counts;

    /// Counts the time between two readings of the time stamp counter's lower half, less than 2^32 cycles. If `until`
    /// is a little before `since`, because another CPU's counter is behind, it counts as 0.
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

/// On average, one send in this many requests of a session is followed on its way.
inline constexpr std::uint64_t kLatencySampleEvery = 253;

/// How long the followed requests of a session spend in each stage. From the device on, only one request of a session
/// is followed at a time, so a slow one keeps others from being counted there.
struct StageLatency {
    /// From try_submit until the worker puts the request into its queue pair's chain, waits for flow control included.
    LatencyHistogram submission_ring;
    /// From the chain until the worker finds the completion; only signaled sends that succeeded.
    LatencyHistogram device;
    LatencyHistogram completion_ring;  ///< from the worker until poll() gives the completion

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
