// A histogram of durations whose relative error is at most kErrorMost.
//
// Each power of two has kPerOctave buckets of equal width. Percentiles are reported as the largest value of a bucket,
// so a percentile is never too low, and too high by at most kErrorMost of itself. Count, sum, least and greatest are
// exact.
//
// Thread safety: one thread uses an object.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pollcore::perf {

class Histogram {
public:
    static constexpr unsigned kSubBits = 8;
    static constexpr std::uint64_t kPerOctave = 1u << kSubBits;
    /// The most that a percentile is too high, as a share of the percentile.
    static constexpr double kErrorMost = 1.0 / kPerOctave;
    /// Longer durations count as this one: 2^44 cycles are more than an hour.
    static constexpr std::uint64_t kGreatest = (std::uint64_t{1} << 44) - 1;
    static constexpr std::size_t kBuckets = (44 - kSubBits + 1) << kSubBits;

    Histogram() : counts_(kBuckets) {}

    void add(std::uint64_t value, std::uint64_t times = 1) noexcept {
        value = std::min(value, kGreatest);
        counts_[bucket_of(value)] += times;
        count_ += times;
        if (count_ == times) [[unlikely]] {
            origin_ = static_cast<double>(value);
        }
        const double off = static_cast<double>(value) - origin_;
        sum_ += off * static_cast<double>(times);
        squares_ += off * off * static_cast<double>(times);
        least_ = std::min(least_, value);
        greatest_ = std::max(greatest_, value);
    }
    Histogram& operator+=(const Histogram& other) noexcept {
        if (other.count_ == 0) {
            return *this;
        }
        for (std::size_t i = bucket_of(other.least_); i <= bucket_of(other.greatest_); ++i) {
            counts_[i] += other.counts_[i];
        }
        if (count_ == 0) {
            origin_ = other.origin_;
        }
        const double moved = other.origin_ - origin_;
        const auto others = static_cast<double>(other.count_);
        count_ += other.count_;
        squares_ += other.squares_ + moved * (2 * other.sum_ + moved * others);
        sum_ += other.sum_ + moved * others;
        least_ = std::min(least_, other.least_);
        greatest_ = std::max(greatest_, other.greatest_);
        return *this;
    }
    /// Touches only the buckets that are in use: a measuring loop calls it.
    void clear() noexcept {
        if (count_ != 0) {
            std::fill(counts_.begin() + static_cast<std::ptrdiff_t>(bucket_of(least_)),
                      counts_.begin() + static_cast<std::ptrdiff_t>(bucket_of(greatest_) + 1), std::uint64_t{0});
        }
        count_ = 0;
        origin_ = sum_ = squares_ = 0;
        least_ = std::numeric_limits<std::uint64_t>::max();
        greatest_ = 0;
    }

    [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
    [[nodiscard]] std::uint64_t least() const noexcept { return count_ == 0 ? 0 : least_; }
    [[nodiscard]] std::uint64_t greatest() const noexcept { return greatest_; }
    [[nodiscard]] double sum() const noexcept { return sum_ + origin_ * static_cast<double>(count_); }
    [[nodiscard]] double average() const noexcept {
        return count_ == 0 ? 0 : origin_ + sum_ / static_cast<double>(count_);
    }
    /// The standard deviation of these samples: the sum of squares is divided by their number.
    [[nodiscard]] double deviation() const noexcept {
        if (count_ == 0) {
            return 0;
        }
        const double mean = sum_ / static_cast<double>(count_);
        return std::sqrt(std::max(0.0, squares_ / static_cast<double>(count_) - mean * mean));
    }
    /// The smallest value that at least `fraction` (0 to 1) of the samples do not exceed, up to kErrorMost too high.
    /// Returns 0 if there are no samples.
    [[nodiscard]] std::uint64_t percentile(double fraction) const noexcept {
        // A billionth is subtracted, because 0.9999 * 10000 may be a little more than 9999.
        const double wanted = std::max(1.0, std::ceil((fraction - 1e-9) * static_cast<double>(count_)));
        std::uint64_t below = 0;
        for (std::size_t bucket = count_ == 0 ? kBuckets : bucket_of(least_); bucket < kBuckets; ++bucket) {
            below += counts_[bucket];
            if (static_cast<double>(below) >= wanted) {
                return std::clamp(greatest_of(bucket), least_, greatest_);
            }
        }
        return greatest_;
    }

    /// Calls `use(greatest value of the bucket, samples in it)` for each bucket with samples, in ascending order.
    template <class Use>
    void for_each(Use&& use) const {
        for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
            if (counts_[bucket] != 0) {
                use(std::clamp(greatest_of(bucket), least_, greatest_), counts_[bucket]);
            }
        }
    }

    [[nodiscard]] static constexpr std::size_t bucket_of(std::uint64_t value) noexcept {
        if (value < kPerOctave) {
            return static_cast<std::size_t>(value);
        }
        const auto shift = static_cast<unsigned>(std::bit_width(value)) - 1 - kSubBits;
        return (std::size_t{shift} << kSubBits) + static_cast<std::size_t>(value >> shift);
    }
    /// The largest value of a bucket.
    [[nodiscard]] static constexpr std::uint64_t greatest_of(std::size_t bucket) noexcept {
        if (bucket < 2 * kPerOctave) {
            return bucket;
        }
        const std::size_t shift = (bucket >> kSubBits) - 1;
        return ((std::uint64_t{bucket & (kPerOctave - 1)} + kPerOctave + 1) << shift) - 1;
    }

private:
    std::vector<std::uint64_t> counts_;
    std::uint64_t count_ = 0;
    // Sums of the differences from the first value, and of their squares. Sums of the values themselves would lose the
    // deviation of values that are close to each other and far from 0.
    double origin_ = 0;
    double sum_ = 0;
    double squares_ = 0;
    std::uint64_t least_ = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t greatest_ = 0;
};
static_assert(Histogram::bucket_of(Histogram::kGreatest) == Histogram::kBuckets - 1);
static_assert(Histogram::greatest_of(Histogram::kBuckets - 1) == Histogram::kGreatest);
static_assert(Histogram::greatest_of(Histogram::bucket_of(1000)) >= 1000 &&
              Histogram::greatest_of(Histogram::bucket_of(1000) - 1) < 1000);

}  // namespace pollcore::perf
