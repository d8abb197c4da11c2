// The worker follows one of many requests and counts the time that the request spends in each stage.
#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class StageLatencyTest : public WorkerFixture {
protected:
    void make(const SteppedWorld::QpShape& shape = {}, const SteppedWorld::Options& options = {}) {
        WorkerFixture::make(shape, options);
        // The session reads the machine's clock, so the worker's clock has to agree with it.
        world->now = cycles_now();
    }
    /// Submits one request and waits for its completion.
    void complete(const WorkRequest& request) {
        submit(request);
        ASSERT_EQ(step_until(1).size(), 1u);
    }
    [[nodiscard]] static std::array<std::uint64_t, 3> counts(const StageLatency& stages) {
        return {stages.submission_ring.count(), stages.device.count(), stages.completion_ring.count()};
    }
    using Counts = std::array<std::uint64_t, 3>;
};

TEST_F(StageLatencyTest, OneRequestInManyIsCountedInEachStage) {
    make();
    for (std::uint64_t i = 0; i < 4 * kLatencySampleEvery; ++i) {
        complete(write(i));
    }
    EXPECT_EQ(counts(world->session().stage_latency()), (Counts{4, 4, 4}));
}

// One send in 64 is signaled. Some signaled sends must be followed, although the pattern of sends repeats itself.
TEST_F(StageLatencyTest, WhatRepeatsItselfIsNotAlwaysMetInTheSamePlace) {
    make({.shares = {{0, 128, 128}}}, {.submission_slots = 256, .completion_slots = 256});
    for (std::uint64_t i = 0; i < 64 * 4096; ++i) {
        if (i % 32 == 0) {
            for (int j = 0; j < 32; ++j) {
                submit(recv(0));
            }
        }
        submit(send(i, {.flags = signaled_if(i % 64 == 63)}));
        world->step(8);
        (void)world->poll();
    }
    EXPECT_GT(world->session().stage_latency().completion_ring.count(), 0u);
}

TEST_F(StageLatencyTest, TheDevicesPartIsFromTheStepThatTookTheRequestToTheOneThatFoundItsCompletion) {
    make();
    submit(send(1));
    world->step(3);  // the peer has posted no receive for this message yet
    const std::uint64_t taken = world->now;
    world->now += 50'000'000;
    submit(recv(0));
    ASSERT_EQ(step_until(2).size(), 2u);
    const LatencyHistogram device = world->session().stage_latency().device;
    EXPECT_EQ(device.counts[LatencyHistogram::bucket_of(static_cast<std::uint32_t>(world->now - taken))], 1u);
}

TEST_F(StageLatencyTest, AFollowedRequestIsLikeAnyOtherToItsApplication) {
    make();
    for (std::uint64_t first = 0; first < 10 * kLatencySampleEvery; first += 8) {
        std::array<WorkRequest, 8> requests;
        for (std::uint64_t i = 0; i < requests.size(); ++i) {
            requests[i] = write(first + i);
        }
        submit(requests);
        std::uint64_t next = first;
        for (int i = 0; i < 100 && next < first + requests.size(); ++i) {
            world->step();
            for (const Completion& completion : world->poll()) {
                EXPECT_EQ(completion.tag, next++);
                EXPECT_TRUE(completion.ok());
                EXPECT_EQ(completion.byte_len, 0u);
                EXPECT_EQ(completion.flags, 0);
            }
        }
        ASSERT_EQ(next, first + requests.size());
    }
    EXPECT_EQ(counts(world->session().stage_latency()), (Counts{10, 10, 10}));
}

TEST_F(StageLatencyTest, OfAnUnsignaledRequestOnlyTheTimeInTheRingIsKnown) {
    make();
    submit(write(1, {.flags = 0}));
    complete(write(2));
    EXPECT_EQ(counts(world->session().stage_latency()), (Counts{1, 0, 0}));
}

TEST_F(StageLatencyTest, AProgramThatBeginsEachBatchWithAReceiveHasItsSendsFollowed) {
    make();
    for (std::uint64_t i = 0; i < kLatencySampleEvery; ++i) {
        submit(std::array{recv(0), send(1)});
        ASSERT_EQ(step_until(2).size(), 2u);
    }
    EXPECT_EQ(counts(world->session().stage_latency()), (Counts{3, 3, 3}));
}

TEST_F(StageLatencyTest, OfAFailureNoTimeIsCountedAndTheNextIsFollowedAgain) {
    make();
    WorkRequest bad = write(1);
    bad.rkey ^= 0x5a5a;
    submit(bad);
    const std::vector<Completion> got = step_until(1);
    ASSERT_EQ(got.size(), 1u);
    ASSERT_FALSE(got[0].ok());
    EXPECT_EQ(counts(world->session().stage_latency()), (Counts{1, 0, 0}));
    EXPECT_FALSE(world->ends[0]->worker_end->sampling());
}

TEST_F(StageLatencyTest, TheWorkersClockIsReadOnceInAStepForAllThatItFollows) {
    static std::uint64_t reads = 0;
    reads = 0;
    SteppedWorld::Options options;
    options.worker.clock = +[]() noexcept -> std::uint64_t { return cycles_now() + ++reads; };
    make({}, options);
    for (std::uint64_t i = 0; i < kLatencySampleEvery; ++i) {
        complete(write(i));
    }
    EXPECT_EQ(reads, 1u) << "the first was taken, and completed, in one step; the others are not followed";
}

}  // namespace
}  // namespace pollcore::testing
