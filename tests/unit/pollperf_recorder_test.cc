// The recorder that collects what pollperf's loops measure.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/measure/recorder.hpp"

namespace pollcore::perf {
namespace {

constexpr double kRecorderUnitsPerS = 1e9;
constexpr std::uint64_t kMs = 1'000'000;

struct SliceSums {
    std::uint64_t operations = 0;
    double seconds = 0;
    double greatest_ns = 0;
};
SliceSums sums_of(const std::vector<Slice>& slices) {
    SliceSums sums;
    for (const Slice& slice : slices) {
        sums.operations += slice.operations;
        sums.seconds += slice.seconds;
        sums.greatest_ns = std::max(sums.greatest_ns, slice.max_ns);
    }
    return sums;
}

TEST(PollperfRecorder, ASliceHasTheFiguresOfTenMilliseconds) {
    Recorder recorder(kRecorderUnitsPerS, 1);
    recorder.resume(5 * kMs);
    for (std::uint64_t i = 1; i <= 100; ++i) {
        recorder.add(i);
        recorder.advance(5 * kMs + i * kMs / 10, 1);
    }
    recorder.add(200, 3);
    recorder.advance(18 * kMs, 7);
    recorder.pause(18 * kMs);
    const auto [latency, slices] = recorder.take();
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_DOUBLE_EQ(slices[0].at_s, 0.010);
    EXPECT_DOUBLE_EQ(slices[0].seconds, 0.010);
    EXPECT_EQ(slices[0].operations, 100u);
    EXPECT_DOUBLE_EQ(slices[0].median_ns, 50);
    EXPECT_DOUBLE_EQ(slices[0].p99_ns, 99);
    EXPECT_DOUBLE_EQ(slices[0].max_ns, 100);
    EXPECT_DOUBLE_EQ(slices[1].at_s, 0.013);
    EXPECT_DOUBLE_EQ(slices[1].seconds, 0.003);
    EXPECT_EQ(slices[1].operations, 7u);
    EXPECT_DOUBLE_EQ(slices[1].median_ns, 200);
    EXPECT_EQ(latency.count(), 103u);
    EXPECT_DOUBLE_EQ(latency.sum(), 5650);
}

TEST(PollperfRecorder, PausesDoNotCount) {
    Recorder recorder(kRecorderUnitsPerS, 1);
    recorder.resume(0);
    recorder.advance(6 * kMs, 3);
    recorder.pause(7 * kMs);
    recorder.resume(1000 * kMs);
    recorder.advance(1002 * kMs, 4);
    recorder.advance(1003 * kMs, 5);
    recorder.pause(1003 * kMs);
    const auto [latency, slices] = recorder.take();
    ASSERT_EQ(slices.size(), 1u);
    EXPECT_DOUBLE_EQ(slices[0].at_s, 0.010);
    EXPECT_DOUBLE_EQ(slices[0].seconds, 0.010);
    EXPECT_EQ(slices[0].operations, 12u);
}

TEST(PollperfRecorder, WhatIsTakenIsTakenOnceAndTheTimeGoesOn) {
    Recorder recorder(kRecorderUnitsPerS, 1);
    for (std::uint64_t round = 1; round <= 3; ++round) {
        recorder.resume(round * 1000 * kMs);
        recorder.add(7 * round);
        recorder.advance(round * 1000 * kMs + 4 * kMs, round);
        recorder.pause(round * 1000 * kMs + 5 * kMs);
        const auto [latency, slices] = recorder.take();
        ASSERT_EQ(slices.size(), 1u);
        EXPECT_EQ(slices[0].operations, round);
        EXPECT_DOUBLE_EQ(slices[0].seconds, 0.005);
        EXPECT_DOUBLE_EQ(slices[0].at_s, 0.005 * static_cast<double>(round));
        EXPECT_EQ(latency.count(), 1u);
        EXPECT_EQ(latency.greatest(), 7 * round);
    }
    const auto [latency, slices] = recorder.take();
    EXPECT_TRUE(slices.empty());
    EXPECT_EQ(latency.count(), 0u);
}

TEST(PollperfRecorder, HalvingKeepsTheSums) {
    Recorder recorder(kRecorderUnitsPerS, 1);
    recorder.resume(0);
    constexpr std::uint64_t kTurns = 5000;
    for (std::uint64_t i = 1; i <= kTurns; ++i) {
        recorder.add(i);
        recorder.advance(i * 10 * kMs, i);
    }
    recorder.pause(kTurns * 10 * kMs);
    const auto [latency, slices] = recorder.take();
    EXPECT_LE(slices.size(), 512u);
    EXPECT_GE(slices.size(), 256u);
    const SliceSums sums = sums_of(slices);
    EXPECT_EQ(sums.operations, kTurns * (kTurns + 1) / 2);
    EXPECT_NEAR(sums.seconds, 50, 1e-6);
    EXPECT_DOUBLE_EQ(sums.greatest_ns, kTurns);
    EXPECT_NEAR(slices.back().at_s, 50, 1e-6);
    for (std::size_t i = 1; i < slices.size(); ++i) {
        EXPECT_NEAR(slices[i].at_s - slices[i].seconds, slices[i - 1].at_s, 1e-6);
        EXPECT_LE(slices[i - 1].median_ns, slices[i].median_ns);
        EXPECT_LE(slices[i].median_ns, slices[i].p99_ns);
        EXPECT_LE(slices[i].p99_ns, slices[i].max_ns);
    }
    EXPECT_EQ(latency.count(), kTurns);
}

TEST(PollperfRecorder, ALatencyOfARoundTripIsHalfOfIt) {
    Recorder recorder(kRecorderUnitsPerS, 2);
    const std::vector<std::uint64_t> part(1000, 8000);  // 8 ms
    recorder.add_part(part);
    recorder.add_part(part);
    recorder.add_part(std::vector<std::uint64_t>(500, 9000));
    const auto [latency, slices] = recorder.take();
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_DOUBLE_EQ(slices[0].seconds, 0.016);
    EXPECT_EQ(slices[0].operations, 2000u);
    EXPECT_DOUBLE_EQ(slices[0].median_ns, 4000);
    EXPECT_DOUBLE_EQ(slices[1].at_s, 0.0205);
    EXPECT_DOUBLE_EQ(slices[1].seconds, 0.0045);
    EXPECT_EQ(slices[1].operations, 500u);
    EXPECT_DOUBLE_EQ(slices[1].max_ns, 4500);
    EXPECT_EQ(latency.count(), 2500u);
    EXPECT_EQ(latency.greatest(), 9000u);  // the histogram's unit is the clock's
}

}  // namespace
}  // namespace pollcore::perf
