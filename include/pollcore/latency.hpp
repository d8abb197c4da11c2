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

/// A count of durations by size: four buckets to a power of two, so that a bucket's bounds are at most a quarter apart.
/// In cycles of the time stamp counter, up to 2^32. Plain counts, as copied from a LatencyCounters.
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
    /// What was counted since it stood at `earlier`.
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
    /// What the part `fraction` (0 to 1) of the samples is not above, in cycles: the upper bound of their bucket, hence
    /// too much by a quarter at most. 0 without samples.
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

/// The same while it is counted: one writer, any readers.
struct alignas(kCacheLine) LatencyCounters {
    std::array<Counter, LatencyHistogram::kBuckets> counts;

    /// From one reading of the counter's lower half to a later one, less than 2^32 cycles. One that seems to be a
    /// little before it, on a CPU whose counter is behind, counts as none.
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

/// One send of so many requests that a session takes, on average, is followed on its way.
inline constexpr std::uint64_t kLatencySampleEvery = 253;

/// Where the time of a session's requests goes. With the device and behind it one of a session is followed at a time,
/// so slow ones keep others from being counted there.
struct StageLatency {
    LatencyHistogram submission_ring;  ///< from try_submit until the worker put it into its queue pair's chain; one
                                       ///< that had to wait for its flow control, has waited
    LatencyHistogram device;  ///< of a signaled send that succeeded: from there until the worker found its completion
    LatencyHistogram completion_ring;  ///< from there until poll() gave it

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
