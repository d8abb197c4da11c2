// pollperf's figures, and the messages between its two processes.
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/figures.hpp"

namespace pollcore::perf {
namespace {

// ---- Statistics ----

std::vector<std::uint64_t> one_to(std::uint64_t n) {
    std::vector<std::uint64_t> samples(n);
    std::iota(samples.begin(), samples.end(), 1);
    return samples;
}

TEST(PollperfStatistics, PercentilesAreSamplesThatWereTaken) {
    const auto samples = one_to(10000);
    EXPECT_EQ(percentile(samples, 9900), 9900u);
    EXPECT_EQ(percentile(samples, 9990), 9990u);
    EXPECT_EQ(percentile(samples, 9999), 9999u);
    EXPECT_EQ(percentile(samples, 10000), 10000u);
}

TEST(PollperfStatistics, PercentilesOfFewSamplesAreTheLargest) {
    for (const std::uint64_t n : {1u, 2u, 10u, 99u}) {
        EXPECT_EQ(percentile(one_to(n), 9900), n) << n;
    }
    EXPECT_EQ(percentile(one_to(100), 9900), 99u);
    EXPECT_EQ(percentile(one_to(101), 9900), 100u);
    EXPECT_EQ(percentile(one_to(1000), 9999), 1000u);
}

TEST(PollperfStatistics, TheMedianOfAnEvenNumberIsBetweenTheMiddleTwo) {
    EXPECT_DOUBLE_EQ(median(std::vector<std::uint64_t>{4, 8}), 6);
    EXPECT_DOUBLE_EQ(median(std::vector<std::uint64_t>{1, 4, 8}), 4);
    EXPECT_DOUBLE_EQ(median(std::vector<std::uint64_t>{7}), 7);
}

TEST(PollperfStatistics, ASummaryIsInNanosecondsAndDoesNotNeedOrder) {
    const Summary summary = summarize({4, 2, 4, 4, 5, 5, 7, 9}, 0.5);
    EXPECT_EQ(summary.count, 8u);
    EXPECT_DOUBLE_EQ(summary.min, 1);
    EXPECT_DOUBLE_EQ(summary.max, 4.5);
    EXPECT_DOUBLE_EQ(summary.typical, 2.25);
    EXPECT_DOUBLE_EQ(summary.average, 2.5);
    EXPECT_DOUBLE_EQ(summary.stdev, 1);
    EXPECT_DOUBLE_EQ(summary.p99, 4.5);
}

TEST(PollperfStatistics, CloseSamplesFarFromZeroKeepTheirDeviation) {
    const std::uint64_t far = 1ull << 50;
    EXPECT_DOUBLE_EQ(summarize({far, far + 2}, 1).stdev, 1);
}

TEST(PollperfStatistics, OutliersMoveTheAverageAndNotTheTypical) {
    std::vector<std::uint64_t> samples(1000, 100);
    samples[500] = 1'000'000;
    const Summary summary = summarize(samples, 1);
    EXPECT_DOUBLE_EQ(summary.typical, 100);
    EXPECT_DOUBLE_EQ(summary.p99, 100);
    EXPECT_DOUBLE_EQ(summary.p999, 100);
    EXPECT_DOUBLE_EQ(summary.p9999, 1'000'000);
    EXPECT_GT(summary.average, 1000);
}

TEST(PollperfStatistics, NoSamplesAreNoFigures) {
    EXPECT_EQ(summarize({}, 1).count, 0u);
}

}  // namespace
}  // namespace pollcore::perf
