// How many post calls a burst needs, counted at the provider's entry points. There is one call for each queue's chain,
// whatever the chain contains.
#include <array>
#include <cstdint>
#include <tuple>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

// The device's own ops, which the counting functions call. Only one test at a time uses this, in one thread.
ibv_context_ops device_ops;
struct Calls {
    std::uint64_t sends = 0;
    std::uint64_t receives = 0;
} calls;

class DoorbellTest : public WorkerFixture {
protected:
    static constexpr std::uint64_t kBurst = 16;

    DoorbellTest() {
        make();
        ibv_context_ops& ops = world->device->context()->ops;
        device_ops = ops;
        calls = Calls{};
        ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
            ++calls.sends;
            return device_ops.post_send(qp, wr, bad);
        };
        ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
            ++calls.receives;
            return device_ops.post_recv(qp, wr, bad);
        };
        ops.post_srq_recv = [](ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
            ++calls.receives;
            return device_ops.post_srq_recv(srq, wr, bad);
        };
    }
    /// Makes one step, in which the worker takes all submitted requests, and compares the number of post calls.
    void expect(const Calls& expected) {
        world->step();
        EXPECT_EQ(calls.sends, expected.sends);
        EXPECT_EQ(calls.receives, expected.receives);
        EXPECT_EQ(world->worker.counters().send_doorbells.value(), expected.sends);
        EXPECT_EQ(world->worker.counters().receive_doorbells.value(), expected.receives);
    }
};

TEST_F(DoorbellTest, OrdinaryRequestsOfAQueuePairTakeOne) {
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        submit(write(tag));
    }
    expect({.sends = 1});
}

TEST_F(DoorbellTest, RequestsOfEveryKindTakeOne) {
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        const Opcode opcode = tag % 3 == 0 ? Opcode::atomic_fetch_and_add : Opcode::rdma_write;
        submit(request(opcode, tag, {.flags = signaled_if(tag % 2 == 0)}));
    }
    expect({.sends = 1});
}

TEST_F(DoorbellTest, QueuePairsByTurnsTakeOneEach) {
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        submit(write(tag, {.qp = tag % 2 == 0 ? a : b}));
    }
    expect({.sends = 2});
}

TEST_F(DoorbellTest, ReceivesOfAQueuePairTakeOneBesideItsSends) {
    for (std::uint64_t tag = 0; tag < kBurst / 2; ++tag) {
        submit(recv(tag, {.qp = a}));
        submit(write(tag));
    }
    expect({.sends = 1, .receives = 1});
}

TEST_F(DoorbellTest, ReceivesOfASharedQueueTakeOne) {
    const SteppedWorld::Srq& srq = world->add_srq({.session = 0, .depth = kBurst});
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        submit(recv(tag, {.srq = &srq}));
    }
    expect({.receives = 1});
}

}  // namespace
}  // namespace pollcore::testing
