// By which verbs CQs are polled: the way that the configuration asks for, with the same outcome.
#include <atomic>

#include "device/device.hpp"
#include "fixture.hpp"

namespace pollcore::testing {
namespace {

// ibv_poll_cq goes through the context's ops on any device, so that calls of it can be counted there.
std::atomic<std::uint64_t> plain_polls{0};
int (*own_poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;

int counted_poll_cq(ibv_cq* cq, int n, ibv_wc* wc) {
    plain_polls.fetch_add(1, std::memory_order_relaxed);
    return own_poll_cq(cq, n, wc);
}

class PollingInThisProcess : public Conformance, public ::testing::WithParamInterface<PollVerbs> {
protected:
    static Config config() {
        Config with = test_config();
        with.workers[0].poll = GetParam();
        with.workers[0].complete_burst = 3;  // so that bursts end in the middle of what is there
        return with;
    }
    // Before there is a CQ that the worker could be polling.
    PollingInThisProcess() : Conformance(config()), ops(runtime.device().context()->ops) {
        own_poll_cq = ops.poll_cq;
        plain_polls = 0;
        ops.poll_cq = counted_poll_cq;
    }
    ~PollingInThisProcess() override {
        runtime.stop();
    }
    ibv_context_ops& ops;
};

TEST_P(PollingInThisProcess, IsByTheVerbsThatWereAskedForAndBringsTheSame) {
    ASSERT_TRUE(runtime.report().devices.at(0).extended_cqs);
    QueuePairOptions options = shape();
    options.separate_cqs = true;
    connect_pair(options, PathAttributes{});
    constexpr std::uint64_t kRounds = 40;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
        submit(recv(4 * round, 64));
        WorkRequest with = send(4 * round + 1, 24);
        with.opcode = Opcode::send_with_imm;
        with.imm_data = static_cast<std::uint32_t>(round);
        submit(with);
        submit(rdma(Opcode::rdma_write, 4 * round + 2, 8, 0));
        submit(rdma(Opcode::rdma_read, 4 * round + 3, 16));
        if (round % 8 == 7) {  // many at once, in more than one burst
            const auto completions = await(8 * 3);
            const auto sent = of(completions, a.handle(), false);
            const auto received = of(completions, b.handle(), true);
            ASSERT_EQ(sent.size(), 16u);
            ASSERT_EQ(received.size(), 8u);
            for (std::uint64_t i = 0; i < 8; ++i) {
                const std::uint64_t of_round = round - 7 + i;
                EXPECT_EQ(sent[2 * i].tag, 4 * of_round + 1);
                EXPECT_EQ(sent[2 * i].byte_len, 0u);
                EXPECT_EQ(sent[2 * i + 1].tag, 4 * of_round + 3);
                EXPECT_EQ(sent[2 * i + 1].byte_len, 16u);
                EXPECT_EQ(received[i].tag, 4 * of_round);
                EXPECT_EQ(received[i].byte_len, 24u);
                EXPECT_EQ(received[i].imm_data, of_round);
            }
        }
    }
    EXPECT_EQ(session.retired(a.handle()), kRounds);
    EXPECT_EQ(session.figures().in_flight(), 0u);
    WorkRequest bad = rdma(Opcode::rdma_write, 1000, 8);
    bad.rkey ^= 0xabcd00;
    submit({bad, rdma(Opcode::rdma_write, 1001, 8)});
    const auto failed = await(2);
    ASSERT_EQ(failed.size(), 2u);
    EXPECT_EQ(failed[0].status, Status::rem_access_err);
    EXPECT_EQ(failed[1].status, Status::wr_flush_err);
    if (GetParam() == PollVerbs::plain) {
        EXPECT_GT(plain_polls.load(), 0u);
    } else {
        EXPECT_EQ(plain_polls.load(), 0u);
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, PollingInThisProcess, ::testing::Values(PollVerbs::automatic, PollVerbs::extended, PollVerbs::plain),
                         [](const auto& way) {
                             return std::string(way.param == PollVerbs::automatic  ? "Auto"
                                                : way.param == PollVerbs::extended ? "Extended"
                                                                                   : "Plain");
                         });

}  // namespace
}  // namespace pollcore::testing
