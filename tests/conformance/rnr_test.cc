// Receiver not ready (RNR): the retries of each queue pair, the error after the last retry, and the counters.
#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class ReceiverNotReady : public Conformance {
protected:
    static constexpr PathAttributes with_retries(std::uint8_t retries) {
        return {.rnr_retry = retries, .min_rnr_timer = 1};  // 0.01 ms
    }
    static WorkRequest to(const QueuePair& qp, WorkRequest request) {
        request.qp = qp.handle();
        return request;
    }
    /// Waits until the device has counted `received` NAKs, and returns its counts. This may take a while, because the
    /// kernel updates its counters only now and then.
    RnrCounts device_counts_from(std::uint64_t received) {
        RnrCounts counts;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        do {
            counts = runtime.rnr_counts().value();
            test::give_way();
        } while (counts.received < received && std::chrono::steady_clock::now() < deadline);
        return counts;
    }
};

TEST_F(ReceiverNotReady, EachQueuePairHasItsOwnRetries) {
    for (const std::uint8_t retries : {0, 1, 3, 6}) {
        SCOPED_TRACE(int{retries});
        const RnrCounts before = runtime.rnr_counts().value();
        connect_pair(shape(), with_retries(retries));
        submit(send(1, 8));
        EXPECT_EQ(await_one().status, Status::rnr_retry_exc_err);
        const std::uint64_t naks = retries + 1u;
        const RnrCounts after = device_counts_from(before.received + naks);
        EXPECT_EQ(after.received - before.received, naks);
        EXPECT_EQ(after.sent - before.sent, naks);
        // The verbs API has no counter per queue pair.
        ASSERT_EQ(a.rnr_counts().has_value(), !TestDevice::get().verbs);
        if (a.rnr_counts()) {
            EXPECT_EQ(a.rnr_counts(), (RnrCounts{.received = naks, .sent = 0}));
            EXPECT_EQ(b.rnr_counts(), (RnrCounts{.received = 0, .sent = naks}));
        }
    }
}

TEST_F(ReceiverNotReady, TwoQueuePairsAtATimeKeepToTheirOwnRetries) {
    connect_pair(shape(), with_retries(7));
    QueuePair patient = std::move(a);
    QueuePair slow = std::move(b);
    connect_pair(shape(), with_retries(1));
    submit(to(patient, send(1, 8)));
    submit(send(2, 8));
    const Completion first = await_one();
    EXPECT_EQ(first.tag, 2u);
    EXPECT_EQ(first.status, Status::rnr_retry_exc_err);
    EXPECT_EQ(session.state(patient.handle()), QpState::ready);
    submit(to(slow, recv(3, 64)));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success) << completion.tag;
    }
}

TEST_F(ReceiverNotReady, WhenRetriesAreUsedUpAllThatFollowsIsFlushedAndNewWorkIsRefusedWithTheCause) {
    connect_pair(shape(), with_retries(2));
    for (std::uint64_t tag = 0; tag < 8; ++tag) {
        submit(to(a, recv(100 + tag, 64)));
    }
    std::vector<WorkRequest> requests{rdma(Opcode::rdma_write, 1, 8, 0), rdma(Opcode::rdma_read, 2, 8), send(3, 8)};
    for (std::uint64_t tag = 4; tag < 30; ++tag) {
        requests.push_back(
            tag % 3 == 0 ? send(tag, 8, 0)
                         : rdma(Opcode::rdma_write, tag, 8, tag % 2 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0}));
    }
    submit(requests);
    const auto completions = await(36);
    const auto sent = of(completions, a.handle(), false);
    const auto received = of(completions, a.handle(), true);
    ASSERT_EQ(sent.size(), 28u);
    ASSERT_EQ(received.size(), 8u);
    EXPECT_EQ(sent[0].tag, 2u);
    EXPECT_EQ(sent[0].status, Status::success);
    EXPECT_EQ(sent[1].tag, 3u);
    EXPECT_EQ(sent[1].status, Status::rnr_retry_exc_err);
    for (std::size_t i = 2; i < sent.size(); ++i) {
        EXPECT_EQ(sent[i].tag, i + 2);
        EXPECT_EQ(sent[i].status, Status::wr_flush_err);
    }
    for (std::size_t i = 0; i < received.size(); ++i) {
        EXPECT_EQ(received[i].tag, 100 + i);
        EXPECT_EQ(received[i].status, Status::wr_flush_err);
    }
    EXPECT_EQ(session.try_submit(send(50, 8)), Refusal::qp_in_error);
    EXPECT_EQ(session.try_submit(to(a, recv(51, 8))), Refusal::qp_in_error);
    EXPECT_EQ(session.state(a.handle()), QpState::error);
    EXPECT_EQ(session.cause(a.handle()), Status::rnr_retry_exc_err);
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_EQ(session.retired(a.handle()), 1u);
}

TEST_F(ReceiverNotReady, AReceiveThatComesBeforeTheLastRetrySavesTheSend) {
    connect_pair(shape(), {.rnr_retry = 6, .min_rnr_timer = 28});  // 163.84 ms
    const RnrCounts before = runtime.rnr_counts().value();
    submit(send(1, 8));
    const RnrCounts after = device_counts_from(before.received + 1);
    submit(recv(2, 64));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    EXPECT_GE(after.received, before.received + 1);
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
}

}  // namespace
}  // namespace pollcore::testing
