// Ordinary requests take the fast path (worker/ordinary.hpp). These tests check which requests the fast path leaves to
// the general way, and that an application cannot tell which way a request took.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
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

class MixedBursts : public WorkerFixture {
protected:
    static constexpr std::uint32_t kPlace = 64;  // bytes in `target` for each request

    /// A write of `length` bytes to place `at`. Its payload is inline if `is_inline`, else it comes from `source`.
    [[nodiscard]] WorkRequest write_to(std::size_t at, std::uint32_t length, bool is_inline) {
        const std::size_t from = at * kPlace;
        const WorkRequest request = write(at, {.length = length, .from = from, .to = at * kPlace});
        if (!is_inline) {
            return request;
        }
        auto& payload = payloads.emplace_back(std::make_unique<std::array<std::byte, kPlace>>());
        std::copy_n(source->data(from), kPlace, payload->begin());
        return request.with_inline(std::span(*payload).first(length));
    }
    void expect_written(std::size_t at, std::uint32_t length) {
        EXPECT_EQ(std::memcmp(target->data(at * kPlace), source->data(at * kPlace), length), 0) << at;
        EXPECT_EQ(*target->data(at * kPlace + length), std::byte{0}) << "nothing behind it";
    }
    /// The payloads have been copied by the call that took the requests.
    void drop_payloads() {
        for (const auto& payload : payloads) {
            payload->fill(std::byte{0xee});
        }
    }

    std::vector<std::unique_ptr<std::array<std::byte, kPlace>>> payloads;
};

TEST_F(MixedBursts, ArePublishedAtOnceAndKeepTheirOrder) {
    const std::array<std::uint32_t, 8> lengths{8, 0, 1, 15, 16, 17, 56, 63};
    // Each case names the place of the first payload, and every how many requests one follows.
    for (const auto& [first, every] : {std::pair{0u, 1u}, {0u, 2u}, {1u, 2u}, {5u, 3u}, {23u, 24u}}) {
        make({.shares = {{0, 64, 1}}});
        std::vector<WorkRequest> burst;
        for (std::size_t i = 0; i < 24; ++i) {
            burst.push_back(write_to(i, lengths[i % lengths.size()], i >= first && (i - first) % every == 0));
        }
        submit(burst);
        drop_payloads();
        world->step();
        EXPECT_EQ(world->worker.counters().send_doorbells.value(), 1u) << "the worker sees them together";
        const std::vector<Completion> got = step_until(burst.size());
        ASSERT_EQ(got.size(), burst.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
            EXPECT_EQ(got[i].tag, i);
            EXPECT_TRUE(got[i].ok());
            expect_written(i, lengths[i % lengths.size()]);
        }
    }
}

TEST_F(MixedBursts, EndWhereTheRingHasNoRoomForAWholePayload) {
    SteppedWorld::Options options;
    options.submission_slots = 8;
    make({.shares = {{0, 64, 1}}}, options);
    for (std::size_t round = 0; round < 50; ++round) {  // the slots of a payload wrap around at each place
        std::fill(target->memory.begin(), target->memory.end(), std::byte{0});
        // A payload of 63 bytes takes three slots.
        std::vector<WorkRequest> burst;
        for (std::size_t i = 0; i < 6; ++i) {
            burst.push_back(write_to(i, 63, i % 3 != 2));
        }
        std::size_t taken = 0;
        while (taken < burst.size()) {
            const Submitted some = world->session().try_submit(std::span(burst).subspan(taken));
            taken += some.accepted;
            EXPECT_EQ(some.refusal, taken == burst.size() ? Refusal::none : Refusal::submission_ring_full);
            EXPECT_GE(some.accepted, 1u);
            world->step();
        }
        ASSERT_EQ(step_until(burst.size()).size(), burst.size());
        for (std::size_t i = 0; i < burst.size(); ++i) {
            expect_written(i, 63);
        }
    }
}

TEST_F(MixedBursts, EndAtTheFirstThatIsRefused) {
    make({.shares = {{0, 4, 1}}, .inline_max = 16});
    const auto expect_taken = [&](const std::vector<WorkRequest>& burst, std::size_t taken, Refusal refusal) {
        const std::uint64_t refused = world->session().figures().refused;
        const Submitted some = world->session().try_submit(burst);
        EXPECT_EQ(some.accepted, taken);
        EXPECT_EQ(some.refusal, refusal);
        EXPECT_EQ(world->session().figures().refused, refused + 1);
        EXPECT_EQ(step_until(taken).size(), taken);
    };
    const WorkRequest good = write_to(0, 16, true);
    const WorkRequest other = write_to(1, 16, false);
    expect_taken({good, other, write_to(2, 17, true), good}, 2, Refusal::inline_too_long);
    expect_taken({other, good, request(Opcode::rdma_read, 3).with_flags(kInline), good}, 2, Refusal::bad_flags);
    expect_taken({good, recv(1, {.qp = a}).with_flags(kInline)}, 1, Refusal::bad_flags);
    expect_taken({good, good, other, good, good}, 4, Refusal::send_queue_full);
    WorkRequest two = good;
    two.num_sge = 2;
    expect_taken({good, two}, 1, Refusal::too_many_sges);
    WorkRequest uncounted = good;
    uncounted.num_sge = 0;
    expect_taken({good, uncounted}, 1, Refusal::no_sge);
    WorkRequest nobody = good;
    nobody.qp = {};
    expect_taken({good, nobody}, 1, Refusal::stale_handle);
    EXPECT_EQ(world->session().figures().in_flight(), 0u);
}

// Some requests carry a reading of the clock in their own slot, to measure how long they take. A payload that follows
// must not be hit by it.
TEST_F(MixedBursts, PayloadsStayWholeWhenTheirRequestsAreTimed) {
    make({.shares = {{0, 64, 1}}});
    for (std::size_t round = 0; round < 200; ++round) {
        std::fill(target->memory.begin(), target->memory.end(), std::byte{0});
        std::vector<WorkRequest> burst;
        for (std::size_t i = 0; i < 8; ++i) {
            burst.push_back(write_to(i, 63, i % 4 != 0));
        }
        submit(write(0));  // so that another request of each burst is timed
        submit(burst);
        ASSERT_EQ(step_until(1 + burst.size()).size(), 1 + burst.size());
        for (std::size_t i = 0; i < burst.size(); ++i) {
            expect_written(i, 63);
        }
        payloads.clear();
    }
    EXPECT_GT(world->session().stage_latency().submission_ring.count(), 0u);
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
