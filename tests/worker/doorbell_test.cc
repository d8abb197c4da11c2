// How often a burst calls the provider, counted where the calls arrive: once for the chain of a queue, whatever stands in it.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <tuple>

#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

// What the device would have been called. One test at a time runs in one thread.
ibv_context_ops device_ops;
struct Calls {
    std::uint64_t sends = 0;
    std::uint64_t receives = 0;
} calls;

class DoorbellTest : public ::testing::Test {
protected:
    static constexpr std::uint64_t kBurst = 16;

    DoorbellTest() {
        std::tie(a, b) = world.pair(SteppedWorld::QpShape{});
        region = &world.register_memory(memory.data(), memory.size());
        ibv_context_ops& ops = world.device->context()->ops;
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
    void submit(const WorkRequest& request) { ASSERT_EQ(world.session().try_submit(request), Refusal::none); }
    /// Of what was submitted, which the worker takes at once.
    void expect(const Calls& expected) {
        world.step();
        EXPECT_EQ(calls.sends, expected.sends);
        EXPECT_EQ(calls.receives, expected.receives);
        EXPECT_EQ(world.worker.counters().send_doorbells.value(), expected.sends);
        EXPECT_EQ(world.worker.counters().receive_doorbells.value(), expected.receives);
    }
    [[nodiscard]] WorkRequest write(std::uint64_t tag, const SteppedWorld::Qp& qp) const { return SteppedWorld::write(tag, qp, *region); }

    alignas(64) std::array<std::byte, 256> memory{};
    SteppedWorld world;
    SteppedWorld::Qp* a = nullptr;
    SteppedWorld::Qp* b = nullptr;
    ibv_mr* region = nullptr;
};

TEST_F(DoorbellTest, OrdinaryRequestsOfAQueuePairTakeOne) {
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        submit(write(tag, *a));
    }
    expect({.sends = 1});
}

TEST_F(DoorbellTest, RequestsOfEveryKindTakeOne) {
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        WorkRequest request = write(tag, *a);
        request.flags = tag % 2 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0};
        request.opcode = tag % 3 == 0 ? Opcode::atomic_fetch_and_add : Opcode::rdma_write;
        submit(request);
    }
    expect({.sends = 1});
}

TEST_F(DoorbellTest, QueuePairsByTurnsTakeOneEach) {
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        submit(write(tag, tag % 2 == 0 ? *a : *b));
    }
    expect({.sends = 2});
}

TEST_F(DoorbellTest, ReceivesOfAQueuePairTakeOneBesideItsSends) {
    for (std::uint64_t tag = 0; tag < kBurst / 2; ++tag) {
        submit({.tag = tag, .qp = a->handle(), .opcode = Opcode::recv});
        submit(write(tag, *a));
    }
    expect({.sends = 1, .receives = 1});
}

TEST_F(DoorbellTest, ReceivesOfASharedQueueTakeOne) {
    const SteppedWorld::Srq& srq = world.add_srq({.session = 0, .depth = kBurst});
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        submit({.tag = tag, .srq = srq.handle(), .opcode = Opcode::srq_recv});
    }
    expect({.receives = 1});
}

}  // namespace
}  // namespace pollcore::testing
