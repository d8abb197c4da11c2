// QueuePairOptions::coalesce_signals: the order, the number and the statuses of completions are the same as without
// this option.
#include "fixture.hpp"

namespace pollcore::testing {
namespace {

class CoalescedSignals : public Conformance {
protected:
    [[nodiscard]] QueuePairOptions coalescing() {
        QueuePairOptions options = shape();
        options.coalesce_signals = true;
        return options;
    }
    static void expect_tags(const std::vector<Completion>& completions, std::uint64_t first) {
        for (std::size_t i = 0; i < completions.size(); ++i) {
            EXPECT_EQ(completions[i].tag, first + i);
        }
    }
};

TEST_F(CoalescedSignals, EachRequestOfABurstCompletesInOrder) {
    connect_pair(coalescing(), {});
    std::vector<WorkRequest> burst;
    for (std::uint64_t round = 0; round < 20; ++round) {
        burst.clear();
        for (std::uint64_t i = 0; i < 32; ++i) {
            burst.push_back(rdma(i % 3 == 1 ? Opcode::rdma_read : Opcode::rdma_write, round * 32 + i, 8));
        }
        submit(burst);
        const std::vector<Completion> got = await(32);
        ASSERT_EQ(got.size(), 32u);
        expect_tags(got, round * 32);
        for (const Completion& completion : got) {
            EXPECT_TRUE(completion.ok());
            EXPECT_EQ(completion.byte_len, completion.opcode == CompletionOpcode::rdma_read ? 8u : 0u);
        }
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_LT(runtime.worker_counters(0).completions.value(), 20 * 32u);
    Exercised::get().note("queue pairs", "coalesced signals");
}

TEST_F(CoalescedSignals, AReadThatHasCompletedHasItsBytes) {
    connect_pair(coalescing(), {});
    WorkRequest read = rdma(Opcode::rdma_read, 0, 4096);
    submit({read, rdma(Opcode::rdma_read, 1, 8), rdma(Opcode::rdma_read, 2, 8)});
    ASSERT_EQ(await(3).size(), 3u);
    EXPECT_EQ(std::memcmp(local.data(), remote.data(), 4096), 0);
}

TEST_F(CoalescedSignals, UnsignaledRequestsAmongThemRetire) {
    connect_pair(coalescing(), {});
    submit({rdma(Opcode::rdma_write, 0, 8, 0), rdma(Opcode::rdma_write, 1, 8), rdma(Opcode::rdma_write, 2, 8, 0)});
    const std::vector<Completion> got = await(1);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].tag, 1u);
    submit(rdma(Opcode::rdma_write, 3, 8));
    EXPECT_EQ(await(1).size(), 1u);
    EXPECT_EQ(session.retired(a.handle()), 2u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(CoalescedSignals, WhatStandsBeforeAFailureHasSucceeded) {
    connect_pair(coalescing(), {});
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 8);
    bad.rkey ^= 0xabcd00;
    submit({rdma(Opcode::rdma_read, 0, 8), rdma(Opcode::rdma_write, 1, 8), bad, rdma(Opcode::rdma_write, 3, 8),
            rdma(Opcode::rdma_write, 4, 8)});
    const std::vector<Completion> got = await(5);
    ASSERT_EQ(got.size(), 5u);
    expect_tags(got, 0);
    const std::array expected{Status::success, Status::success, Status::rem_access_err, Status::wr_flush_err,
                              Status::wr_flush_err};
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(got[i].status, expected[i]) << i;
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(CoalescedSignals, MessagesWithFlowControlToo) {
    for (const FlowControl flow : {FlowControl::off, FlowControl::credits}) {
        QueuePairOptions options = coalescing();
        options.flow = flow;
        connect_pair(options, {});
        for (std::uint64_t i = 0; i < 16; ++i) {
            submit(recv(100 + i, 64, i * 64));
        }
        std::vector<WorkRequest> burst;
        for (std::uint64_t i = 0; i < 16; ++i) {
            burst.push_back(send(i, 32));
        }
        submit(burst);
        const std::vector<Completion> got = await(32);
        const auto sent = of(got, a.handle(), false);
        const auto received = of(got, b.handle(), true);
        ASSERT_EQ(sent.size(), 16u);
        ASSERT_EQ(received.size(), 16u);
        expect_tags(sent, 0);
        expect_tags(received, 100);
        a.close();
        b.close();
    }
}

TEST_F(CoalescedSignals, ACloseCompletesWhatIsInFlight) {
    connect_pair(coalescing(), {});
    std::vector<WorkRequest> burst;
    for (std::uint64_t i = 0; i < 32; ++i) {
        burst.push_back(rdma(Opcode::rdma_write, i, 512));
    }
    submit(burst);
    a.close();
    const std::vector<Completion> got = await(32);
    ASSERT_EQ(got.size(), 32u);
    expect_tags(got, 0);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

}  // namespace
}  // namespace pollcore::testing
