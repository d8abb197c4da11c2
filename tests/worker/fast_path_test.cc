// Ordinary requests take the fast path (worker/ordinary.hpp). These tests check which requests the fast path leaves to
// the general way, and that an application cannot tell which way a request took.
#include <array>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class FastPathTest : public WorkerFixture {
protected:
    [[nodiscard]] WorkRequest fetch_add(std::uint64_t tag) const {
        WorkRequest atomic = request(Opcode::atomic_fetch_and_add, tag, {.to = 512});
        atomic.compare_add = 1;
        return atomic;
    }
};

TEST_F(FastPathTest, AQueuePairIsOrdinaryWhileItIsConnectedAndNotParked) {
    make();
    EXPECT_NE(a->end->ordinary(), 0);
    world->proxy.park(a->handle());
    EXPECT_EQ(a->end->ordinary(), 0);
    world->proxy.unpark(a->handle(), QpState::ready, Status::success);
    EXPECT_NE(a->end->ordinary(), 0);
    world->proxy.park(a->handle());
    world->proxy.unpark(a->handle(), QpState::error, Status::wr_flush_err);
    EXPECT_EQ(a->end->ordinary(), 0);
}

TEST_F(FastPathTest, SendsWritesAndReadsAreOrdinary) {
    make();
    for (const Opcode opcode : {Opcode::rdma_write, Opcode::rdma_write_with_imm, Opcode::send, Opcode::send_with_imm,
                                Opcode::rdma_read, Opcode::atomic_cmp_and_swp, Opcode::atomic_fetch_and_add,
                                Opcode::local_inv, Opcode::bind_mw, Opcode::send_with_inv}) {
        EXPECT_EQ(allows(a->end->ordinary(), opcode), !is_atomic(opcode) && !is_local(opcode))
            << static_cast<int>(opcode);
    }
}

TEST_F(FastPathTest, ItIsWithCreditsTooAndWithWriteRingsIsNot) {
    make({.flow = FlowControl::credits});
    EXPECT_NE(a->end->ordinary(), 0);
    make({.flow = FlowControl::ring});
    EXPECT_EQ(a->end->ordinary(), 0);
}

TEST_F(FastPathTest, OrdinaryRequestsAndOthersKeepTheirOrder) {
    make();
    std::array<WorkRequest, 12> requests;
    for (std::uint64_t i = 0; i < requests.size(); ++i) {
        requests[i] = i % 3 == 1 ? fetch_add(i) : write(i);
    }
    submit(requests);
    const std::vector<Completion> got = step_until(requests.size());
    ASSERT_EQ(got.size(), requests.size());
    for (std::uint64_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].tag, i);
        EXPECT_TRUE(got[i].ok());
        EXPECT_EQ(got[i].opcode, i % 3 == 1 ? CompletionOpcode::fetch_add : CompletionOpcode::rdma_write);
        EXPECT_EQ(got[i].byte_len, i % 3 == 1 ? 8u : 0u);
    }
}

TEST_F(FastPathTest, AReadSaysHowManyBytesCame) {
    make();
    submit(request(Opcode::rdma_read, 1, {.length = 24}));
    const std::vector<Completion> got = step_until(1);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].opcode, CompletionOpcode::rdma_read);
    EXPECT_EQ(got[0].byte_len, 24u);
}

TEST_F(FastPathTest, AParkedQueuePairIsLeftAloneAndItsRequestsWait) {
    make();
    world->proxy.park(a->handle());
    submit(write(1));
    world->step(10);
    EXPECT_EQ(world->worker.counters().send_doorbells.value(), 0u);
    world->proxy.unpark(a->handle(), QpState::ready, Status::success);
    EXPECT_EQ(step_until(1).size(), 1u);
}

TEST_F(FastPathTest, InlinePayloadsArriveWhateverTheirLengthIs) {
    make({.inline_max = 64});
    for (const std::size_t length : {0u, 1u, 15u, 16u, 17u, 64u}) {
        std::array<std::byte, 64> payload;
        for (std::size_t i = 0; i < payload.size(); ++i) {
            payload[i] = static_cast<std::byte>(length * 3 + i + 1);
        }
        std::memset(target->data(), 0, 128);
        ASSERT_EQ(world->session().try_submit_inline(write(length), std::span(payload).first(length)), Refusal::none);
        const std::vector<Completion> got = step_until(1);
        ASSERT_EQ(got.size(), 1u) << length;
        EXPECT_TRUE(got[0].ok());
        EXPECT_EQ(std::memcmp(target->data(), payload.data(), length), 0) << length;
        EXPECT_EQ(*target->data(length), std::byte{0}) << "nothing behind it";
    }
}

// The session refuses each of these requests. They reach the worker only if a process bypasses the session and writes
// to the ring itself.
TEST_F(FastPathTest, WhatNoSessionLetsThroughTheWorkerRefuses) {
    make({.shares = {{0, 4, 4}}, .inline_max = 8});
    const auto with = [&](auto change) {
        WorkRequest request = write(0);
        change(request);
        return request;
    };
    std::vector<WorkRequest> bad{
        with([](WorkRequest& r) { r.qp.generation += 1; }),
        with([](WorkRequest& r) { r.qp.index += 1000; }),
        with([](WorkRequest& r) { r.qp = {}; }),
        with([](WorkRequest& r) { r.opcode = Opcode{200}; }),
        with([](WorkRequest& r) { r.opcode = Opcode{15}; }),
        with([](WorkRequest& r) {
            r.flags = kInline | kSignaled;
            r.sge.length = 16;
        }),  // longer than inline_max
        with([](WorkRequest& r) {
            r.flags = kInline | kSignaled;
            r.sge.length = 4;
            r.opcode = Opcode::rdma_read;
        }),  // reads cannot be inline
    };
    RingProducer<WorkRequest> ring = world->raw();
    for (std::size_t i = 0; i < bad.size(); ++i) {
        bad[i].tag = i;
        // In the ring, each bad request follows an ordinary one in the same burst.
        ASSERT_EQ(ring.reserve(2), 2u);
        ring.write(0, write(100 + i));
        ring.write(1, bad[i]);
        ring.commit(2);
        world->step(20);
        EXPECT_EQ(world->worker.counters().refused_requests.value(), i + 1) << i;
    }
    EXPECT_EQ(world->worker.counters().delivered.value(), 2 * bad.size());
    EXPECT_EQ(world->worker.counters().broken_sessions.value(), 0u);
}

TEST_F(FastPathTest, MoreThanItsShareOfTheQueueIsRefusedThere) {
    make({.shares = {{0, 4, 4}}});
    RingProducer<WorkRequest> ring = world->raw();
    ASSERT_EQ(ring.reserve(6), 6u);
    for (std::size_t i = 0; i < 6; ++i) {
        ring.write(i, write(i));
    }
    ring.commit(6);
    world->step();
    EXPECT_EQ(world->worker.counters().sends.value(), 4u);
    EXPECT_EQ(world->worker.counters().refused_requests.value(), 2u);
}

TEST_F(FastPathTest, ARequestThatNamesNoQueuePairIsRefusedInABurst) {
    make();
    const std::array<WorkRequest, 1> nothing{};
    EXPECT_EQ(world->session().try_submit(nothing).refusal, Refusal::stale_handle);
    const std::array<WorkRequest, 3> behind{write(1), fetch_add(2), WorkRequest{}};
    const Submitted submitted = world->session().try_submit(behind);
    EXPECT_EQ(submitted.accepted, 2u);
    EXPECT_EQ(submitted.refusal, Refusal::stale_handle);
    EXPECT_EQ(step_until(2).size(), 2u);
}

TEST_F(FastPathTest, ARequestOfSeveralSlotsAtTheEndOfABurstEndsIt) {
    SteppedWorld::Options options;
    options.worker.submit_burst = 2;
    make({.shares = {{0, 32, 1}}}, options);
    const std::array<Sge, 4> sges{source->sge(8), source->sge(8), source->sge(8), source->sge(8)};
    submit(write(1));
    ASSERT_EQ(world->session().try_submit(write(0), sges), Refusal::none);
    for (std::uint64_t i = 2; i < 20; ++i) {
        submit(write(i));
    }
    world->step();
    EXPECT_EQ(world->worker.counters().sends.value(), 2u);
    EXPECT_EQ(step_until(20).size(), 20u);
}

TEST_F(FastPathTest, ACompletionThatFailsStandsInItsPlaceAmongThoseThatDoNot) {
    make();
    std::array<WorkRequest, 5> requests;
    for (std::uint64_t i = 0; i < requests.size(); ++i) {
        requests[i] = write(i);
    }
    requests[3].rkey ^= 0x5a5a;
    submit(requests);
    const std::vector<Completion> got = step_until(requests.size());
    ASSERT_EQ(got.size(), requests.size());
    for (std::uint64_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].tag, i);
        EXPECT_EQ(got[i].ok(), i < 3) << i;
    }
}

}  // namespace
}  // namespace pollcore::testing
