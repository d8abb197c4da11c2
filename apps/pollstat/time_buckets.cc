#include "time_buckets.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "pollcore/latency.hpp"

namespace pollcore::stat {
namespace {

using statistics::Kind;

constexpr std::array kTimeBounds{5e-8, 1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4,
                                 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0};
constexpr std::size_t kNumberBoundsMax = 32;

struct Range {
    double least = 0;
    double most = 0;
};

/// The values that a bucket of the segment has, in the segment's unit.
Range range_of(Kind kind, std::size_t bucket) {
    if (kind == Kind::latency) {
        return {static_cast<double>(LatencyHistogram::least_of(bucket)),
                static_cast<double>(LatencyHistogram::least_of(bucket + 1) - 1)};
    }
    return bucket == 0
               ? Range{}
               : Range{std::ldexp(1.0, static_cast<int>(bucket) - 1), std::ldexp(1.0, static_cast<int>(bucket)) - 1};
}

/// More than 2^64 values are an enemy's. The counts must not decrease from bucket to bucket even then.
std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
    return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

template <class Bounds>
Buckets rebinned(Kind kind, const std::vector<std::uint64_t>& counts, const Bounds& bounds, double unit) {
    Buckets out;
    for (const double bound : bounds) {
        out.buckets.push_back({.most = bound, .count = 0});
    }
    // More buckets than a latency has are no latency.
    const std::size_t buckets =
        kind == Kind::latency ? std::min(counts.size(), LatencyHistogram::kBuckets) : counts.size();
    for (std::size_t i = 0; i < buckets; ++i) {
        const Range range = range_of(kind, i);
        // The last bucket has all longer durations, too.
        const bool open = i + 1 == counts.size();
        const auto place = std::lower_bound(bounds.begin(), bounds.end(), range.most * unit);
        if (place != bounds.end() && !open) {
            Buckets::Bucket& to = out.buckets[static_cast<std::size_t>(place - bounds.begin())];
            to.count = saturating_sum(to.count, counts[i]);
        }
        out.count = saturating_sum(out.count, counts[i]);
        out.sum += static_cast<double>(counts[i]) * (open ? range.least : (range.least + range.most) / 2) * unit;
    }
    for (std::size_t i = 1; i < out.buckets.size(); ++i) {
        out.buckets[i].count = saturating_sum(out.buckets[i].count, out.buckets[i - 1].count);
    }
    return out;
}

}  // namespace

Buckets time_buckets(Kind kind, const std::vector<std::uint64_t>& counts, double seconds_per_unit) {
    return rebinned(kind, counts, kTimeBounds, seconds_per_unit);
}

Buckets number_buckets(Kind kind, const std::vector<std::uint64_t>& counts) {
    std::vector<double> bounds;
    for (std::size_t i = 0; i + 1 < std::min(counts.size(), kNumberBoundsMax); ++i) {
        bounds.push_back(range_of(Kind::histogram, i).most);
    }
    return rebinned(kind, counts, bounds, 1);
}

}  // namespace pollcore::stat
