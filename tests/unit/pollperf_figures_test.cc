// pollperf's figures, and the messages between its two processes.
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/figures.hpp"
#include "pollperf/peer_letter.hpp"

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

// ---- Private data ----

const LatRequest kRequest{.op = Op::write,
                          .path = PathKind::runtime,
                          .verify = true,
                          .size = 64,
                          .iterations = 1000,
                          .warmup = 100,
                          .memory = {0x123456789abcdef0, 0xfedcba98}};

TEST(PollperfRendezvous, ARequestArrivesAsItWasSentWithPaddingBehind) {
    auto bytes = kRequest.encode();
    EXPECT_EQ(bytes.size(), LatRequest::kWireLength);
    bytes.resize(bytes.size() + 8);
    const auto request = LatRequest::decode(bytes);
    ASSERT_TRUE(request);
    EXPECT_EQ(mismatch(kRequest, *request), "");
    EXPECT_EQ(request->path, kRequest.path);
    EXPECT_EQ(request->memory.addr, kRequest.memory.addr);
    EXPECT_EQ(request->memory.rkey, kRequest.memory.rkey);
}

TEST(PollperfRendezvous, WhatIsNotAllThereOrNotKnownIsNoRequest) {
    const auto bytes = kRequest.encode();
    for (std::size_t n = 0; n < bytes.size(); ++n) {
        EXPECT_FALSE(LatRequest::decode(std::span(bytes).first(n))) << n;
    }
    // The offsets of the fields magic, version, length, op, path, verify and reserved.
    for (const std::size_t at : {0u, 4u, 6u, 8u, 9u, 10u, 11u}) {
        auto changed = bytes;
        changed[at] = std::byte{0x77};
        EXPECT_FALSE(LatRequest::decode(changed)) << at;
    }
}

TEST(PollperfRendezvous, AMismatchNamesTheOptionAndBothValues) {
    LatRequest other = kRequest;
    other.size = 128;
    EXPECT_EQ(mismatch(kRequest, other), "client has -s 128, server has -s 64");
    other = kRequest;
    other.op = Op::read;
    EXPECT_EQ(mismatch(kRequest, other), "client has -o read, server has -o write");
    other = kRequest;
    other.path = PathKind::direct;  // the ends may use different paths
    EXPECT_EQ(mismatch(kRequest, other), "");
}

TEST(PollperfRendezvous, PeersAreKnownByTheirAnswers) {
    const Workload write{.op = Op::write, .size = 64};
    const Workload send{.op = Op::send, .size = 64};
    const auto server = LatAnswer{.path = PathKind::direct, .memory = {1, 2}}.encode();
    EXPECT_TRUE(recognize_peer(server, write).answers);
    EXPECT_TRUE(recognize_peer(server, write).ends_connection);
    const auto memory = MemoryOffer{.addr = 4096, .rkey = 7, .size = 64}.encode();
    EXPECT_FALSE(recognize_peer(memory, write).answers);
    EXPECT_EQ(recognize_peer(memory, write).memory.addr, 4096u);
    EXPECT_THROW((void)recognize_peer(memory, send), MeasurementError);
    EXPECT_THROW((void)recognize_peer(memory, {.op = Op::read, .size = 65}), MeasurementError);
    const auto echo = EchoOffer{.message_size_max = 64, .depth = 8}.encode();
    EXPECT_TRUE(recognize_peer(echo, send).answers);
    EXPECT_THROW((void)recognize_peer(echo, {.op = Op::send, .size = 65}), MeasurementError);
    EXPECT_THROW((void)recognize_peer(echo, write), MeasurementError);
    EXPECT_TRUE(recognize_peer({}, send).answers);
    EXPECT_THROW((void)recognize_peer({}, write), MeasurementError);
}

}  // namespace
}  // namespace pollcore::perf
