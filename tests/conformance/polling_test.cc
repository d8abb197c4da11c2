// The worker polls CQs by the verbs that the configuration names, except CQs with time stamps, which it always polls by
// ibv_start_poll. The results are the same by either way.
#include <mutex>
#include <set>

#include "device/device.hpp"
#include "fixture.hpp"
#include "log_capture.hpp"

namespace pollcore::testing {
namespace {

// On any device, ibv_poll_cq calls ops.poll_cq of the CQ's context. The test replaces that function, in order to note
// which CQs are polled by ibv_poll_cq.
std::mutex plainly_polled_mutex;
std::set<const ibv_cq*> plainly_polled;
int (*own_poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;

int noted_poll_cq(ibv_cq* cq, int n, ibv_wc* wc) {
    {
        const std::lock_guard lock(plainly_polled_mutex);
        plainly_polled.insert(cq);
    }
    return own_poll_cq(cq, n, wc);
}

std::size_t cqs_plainly_polled() {
    const std::lock_guard lock(plainly_polled_mutex);
    return plainly_polled.size();
}

/// Records from now on which CQs of the runtime's device are polled by ibv_poll_cq. Call this before the first CQ
/// exists, because a worker might poll an existing CQ at that moment.
void note_polls(TestRuntime& runtime) {
    ibv_context_ops& ops = runtime.device().context()->ops;
    own_poll_cq = ops.poll_cq;
    plainly_polled.clear();
    ops.poll_cq = noted_poll_cq;
}

class PollingInThisProcess : public Conformance, public ::testing::WithParamInterface<PollVerbs> {
protected:
    static Config config() {
        Config with = test_config();
        with.workers[0].poll = GetParam();
        with.workers[0].complete_burst = 3;  // so small that bursts end with completions left in the CQ
        return with;
    }
    PollingInThisProcess() : Conformance(config()) { note_polls(runtime); }
    ~PollingInThisProcess() override { runtime.stop(); }
    [[nodiscard]] bool by_extended() {
        return GetParam() == PollVerbs::automatic ? runtime.device().limits().poll.extended
                                                  : GetParam() == PollVerbs::extended;
    }
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
        if (round % 8 == 7) {  // takes the completions of 8 rounds together, which are more than one burst holds
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
    EXPECT_EQ(cqs_plainly_polled(), by_extended() ? 0u : 2u);
}

TEST_P(PollingInThisProcess, StandsInTheLogOnceForAWorkerAndADevice) {
    const test::LogCapture log(LogLevel::info);
    QueuePairOptions options = shape();
    options.separate_cqs = true;
    connect_pair(options, PathAttributes{});
    const std::string text = log.text();
    EXPECT_EQ(test::occurrences(text, "worker w0 polls its completion queues on "), 1u) << text;
    const std::string why = GetParam() == PollVerbs::automatic
                                ? "poll = \"auto\", and " + std::string(runtime.device().limits().poll.why)
                            : GetParam() == PollVerbs::extended ? "poll = \"extended\""
                                                                : "poll = \"plain\"";
    EXPECT_EQ(
        test::occurrences(text, std::string(by_extended() ? " by ibv_start_poll: " : " by ibv_poll_cq: ") + why + "\n"),
        1u)
        << text;
}

TEST_P(PollingInThisProcess, OfASessionWithTimeStampsIsByTheExtendedVerbsAlways) {
    TestSession timed = runtime.open_session({.wide_completions = true, .device_time = true});
    QueuePairOptions options = shape();
    options.separate_cqs = true;
    const auto write = [&](TestSession& by) {
        for (std::uint64_t tag = 0; tag < 40; ++tag) {
            submit(by, rdma(Opcode::rdma_write, tag, 8));
        }
        EXPECT_EQ(await_wide(by, 40).size(), 40u);
    };
    QueuePair first_a;
    QueuePair first_b;
    const test::LogCapture log(LogLevel::info);
    if (runtime.report().devices.at(0).completion_timestamp_mask != 0) {
        options.shares[0].session = &timed;
        connect_pair(options, PathAttributes{});
        write(timed);
        EXPECT_EQ(cqs_plainly_polled(), 0u);
        const std::string text = log.text();
        EXPECT_EQ(test::occurrences(text, "worker w0 polls its completion queues with time stamps on "), 1u) << text;
        EXPECT_EQ(test::occurrences(text, " by ibv_start_poll: only so can time stamps be read\n"), 1u) << text;
        first_a = std::move(a);
        first_b = std::move(b);
        options.shares[0].session = &session;
    }
    connect_pair(options, PathAttributes{});
    write(session);
    EXPECT_EQ(cqs_plainly_polled(), by_extended() ? 0u : 2u);
    EXPECT_EQ(test::occurrences(log.text(), "worker w0 polls its completion queues on "), 1u) << log.text();
}

// No provider promises that both ways to poll may be mixed on one CQ. Providers promise only that a device may have CQs
// of both kinds.
class TwoWaysToPollInThisProcess : public Conformance {
protected:
    static Config config() {
        Config with = test_config(2);
        with.workers[0].poll = PollVerbs::plain;
        with.workers[1].poll = PollVerbs::extended;
        return with;
    }
    TwoWaysToPollInThisProcess() : Conformance(config()) { note_polls(runtime); }
    ~TwoWaysToPollInThisProcess() override { runtime.stop(); }
};

TEST_F(TwoWaysToPollInThisProcess, OnOneDeviceEachCqIsPolledByTheWayThatItWasMadeFor) {
    TestSession plain = runtime.open_session({.worker = "w0"});
    TestSession extended = runtime.open_session({.worker = "w1"});
    const auto write = [&](TestSession& by, std::size_t polled_plainly) {
        QueuePairOptions options = shape();
        options.shares = {{.session = &by, .send_depth = 64}};
        options.separate_cqs = true;
        connect_pair(options, PathAttributes{});
        for (std::uint64_t tag = 0; tag < 40; ++tag) {
            submit(by, rdma(Opcode::rdma_write, tag, 8));
        }
        EXPECT_EQ(await(by, 40).size(), 40u);
        EXPECT_EQ(cqs_plainly_polled(), polled_plainly);
    };
    write(extended, 0);
    const QueuePair first_a = std::move(a);
    const QueuePair first_b = std::move(b);
    write(plain, 2);
    until([&] { return runtime.control_counters().completion_queues.value() == 4; });
}

INSTANTIATE_TEST_SUITE_P(Ways, PollingInThisProcess,
                         ::testing::Values(PollVerbs::automatic, PollVerbs::extended, PollVerbs::plain),
                         [](const auto& way) {
                             return std::string(way.param == PollVerbs::automatic  ? "Auto"
                                                : way.param == PollVerbs::extended ? "Extended"
                                                                                   : "Plain");
                         });

}  // namespace
}  // namespace pollcore::testing
