// Latency histograms: the bucket of each duration, and the figures that are computed from the buckets.
#include "pollcore/latency.hpp"

#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

namespace pollcore {
namespace {

TEST(LatencyHistogram, EachBucketBeginsWhereTheOneBeforeItEnds) {
    for (std::size_t bucket = 0; bucket < LatencyHistogram::kBuckets; ++bucket) {
        const std::uint64_t least = LatencyHistogram::least_of(bucket);
        const std::uint64_t next = LatencyHistogram::least_of(bucket + 1);
        ASSERT_LT(least, next) << bucket;
        EXPECT_EQ(LatencyHistogram::bucket_of(static_cast<std::uint32_t>(least)), bucket);
        EXPECT_EQ(LatencyHistogram::bucket_of(static_cast<std::uint32_t>(next - 1)), bucket);
        EXPECT_LE(next - least, least / 4 + 1) << "a bucket is a quarter wide at most";
    }
    EXPECT_EQ(LatencyHistogram::least_of(LatencyHistogram::kBuckets), std::uint64_t{1} << 32);
}

TEST(LatencyHistogram, APercentileIsNotBelowTheSamplesAndAQuarterAboveAtMost) {
    const auto counters = std::make_unique<LatencyCounters>();
    for (std::uint32_t i = 1; i <= 1000; ++i) {
        counters->add(7, 7 + i * 100);
    }
    const LatencyHistogram histogram = counters->read();
    EXPECT_EQ(histogram.count(), 1000u);
    for (const auto& [fraction, exact] : {std::pair{0.5, 50'000u}, {0.99, 99'000u}, {1.0, 100'000u}}) {
        EXPECT_GE(histogram.percentile(fraction), exact) << fraction;
        EXPECT_LE(histogram.percentile(fraction), exact + exact / 4) << fraction;
    }
    EXPECT_EQ(histogram.percentile(0), LatencyHistogram::least_of(LatencyHistogram::bucket_of(100) + 1) - 1)
        << "the least";
    EXPECT_EQ(LatencyHistogram{}.percentile(0.5), 0u);
}

TEST(LatencyHistogram, TheClockMayWrapAndBeALittleBehind) {
    const auto counters = std::make_unique<LatencyCounters>();
    counters->add(0xfffffff0, 0x10);
    counters->add(100, 90);
    const LatencyHistogram histogram = counters->read();
    EXPECT_EQ(histogram.counts[LatencyHistogram::bucket_of(0x20)], 1u);
    EXPECT_EQ(histogram.counts[0], 1u);
}

}  // namespace
}  // namespace pollcore
