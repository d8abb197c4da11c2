// Failures: the statuses of completions, the effect on the QP, and that no request is lost.
#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class Errors : public Conformance {
protected:
    void connect_with(const PathAttributes& path) { connect_pair(shape(), path); }

    void expect_error_then_flush(const WorkRequest& bad, Status status) {
        submit(
            {rdma(Opcode::rdma_read, 1, 8, 0), bad, rdma(Opcode::rdma_write, 3, 8, 0), rdma(Opcode::rdma_write, 4, 8)});
        const auto completions = await(3);
        ASSERT_EQ(completions.size(), 3u);
        EXPECT_EQ(completions[0].tag, bad.tag);
        EXPECT_EQ(completions[0].status, status);
        EXPECT_EQ(completions[0].qp, a.handle());
        EXPECT_EQ(completions[1].tag, 3u);
        EXPECT_EQ(completions[1].status, Status::wr_flush_err);
        EXPECT_EQ(completions[2].tag, 4u);
        EXPECT_EQ(completions[2].status, Status::wr_flush_err);
        EXPECT_EQ(session.state(a.handle()), QpState::error);
        EXPECT_EQ(session.cause(a.handle()), status);
        EXPECT_EQ(session.try_submit(rdma(Opcode::rdma_write, 5, 8)), Refusal::qp_in_error);
        EXPECT_EQ(session.figures().in_flight(), 0u);
    }
};

TEST_F(Errors, AnUnknownRkeyIsARemoteAccessError) {
    connect_pair();
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 8);
    bad.rkey ^= 0xabcd00;
    expect_error_then_flush(bad, Status::rem_access_err);
}

TEST_F(Errors, AWriteBeyondTheRegionIsARemoteAccessError) {
    connect_pair();
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 64);
    bad.remote_addr += kBytes - 63;
    expect_error_then_flush(bad, Status::rem_access_err);
}

TEST_F(Errors, AReadOfARegionThatForbidsItIsARemoteAccessError) {
    connect_pair();
    MemoryRegion closed = runtime.allocate(4096, Access{.local_write = true, .remote_write = true});
    WorkRequest bad = rdma(Opcode::rdma_read, 2, 8);
    bad.remote_addr = closed.addr();
    bad.rkey = closed.rkey();
    expect_error_then_flush(bad, Status::rem_access_err);
}

TEST_F(Errors, ARegionOfAnotherProtectionDomainIsARemoteAccessError) {
    connect_pair();
    ProtectionDomain other = runtime.create_protection_domain();
    MemoryRegion foreign = runtime.allocate(4096, Access::all(), "", &other);
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 8);
    bad.remote_addr = foreign.addr();
    bad.rkey = foreign.rkey();
    expect_error_then_flush(bad, Status::rem_access_err);
    foreign.deregister();
}

TEST_F(Errors, AnUnknownLkeyFailsLocally) {
    connect_pair();
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 8);
    bad.sge.lkey ^= 0xabcd00;
    expect_error_then_flush(bad, expected(Status::loc_prot_err, Status::loc_qp_op_err));
}

TEST_F(Errors, AnSgeBeyondItsRegionFailsLocally) {
    connect_pair();
    WorkRequest bad = rdma(Opcode::rdma_write, 2, 64);
    bad.sge.addr += kBytes - 63;
    expect_error_then_flush(bad, Status::loc_prot_err);
}

TEST_F(Errors, AReadIntoARegionWithoutLocalWriteFailsLocally) {
    connect_pair();
    MemoryRegion read_only = runtime.allocate(4096, Access{.local_write = false});
    WorkRequest bad = rdma(Opcode::rdma_read, 2, 8);
    bad.sge = {read_only.addr(), 8, read_only.lkey()};
    expect_error_then_flush(bad, Status::loc_prot_err);
}

TEST_F(Errors, AQpThatForbidsRemoteWritesRefusesThem) {
    QueuePairOptions options = shape();
    options.remote_access = {.read = true, .write = false, .atomic = true};
    connect_pair(options, PathAttributes{});
    expect_error_then_flush(rdma(Opcode::rdma_write, 2, 8), Status::rem_inv_req_err);
}

TEST_F(Errors, AReceiveThatIsTooShortFailsBothSides) {
    connect_pair();
    submit(recv(1, 16));
    submit(recv(2, 64));
    submit(send(3, 32));
    const auto completions = await(3);
    const auto sent = of(completions, a.handle(), false);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(received.size(), 2u);
    EXPECT_EQ(sent[0].status, expected(Status::rem_inv_req_err, Status::rem_op_err));
    EXPECT_EQ(received[0].tag, 1u);
    EXPECT_EQ(received[0].status, expected(Status::loc_len_err, Status::loc_qp_op_err));
    EXPECT_EQ(received[1].status, Status::wr_flush_err);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Errors, AReceiveOfAnUnknownLkeyFailsBothSides) {
    connect_pair();
    WorkRequest bad = recv(1, 64);
    bad.sge.lkey ^= 0xabcd00;
    submit(bad);
    submit(send(2, 32));
    const auto completions = await(2);
    const auto sent = of(completions, a.handle(), false);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(sent[0].status, Status::rem_op_err);
    EXPECT_EQ(received[0].status, expected(Status::loc_prot_err, Status::loc_qp_op_err));
}

TEST_F(Errors, AWriteWithImmediateThatItsKeyForbidsFailsTheReceiveToo) {
    connect_pair();
    submit(recv(1, 64));
    WorkRequest bad = rdma(Opcode::rdma_write_with_imm, 2, 8);
    bad.rkey ^= 0xabcd00;
    submit(bad);
    const auto completions = await(2);
    const auto sent = of(completions, a.handle(), false);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(sent[0].status, Status::rem_access_err);
    EXPECT_EQ(received[0].status, expected(Status::loc_access_err, Status::rem_access_err));
}

// Whatever length the SGE has, a provider may write the 8 bytes of an atomic's answer.
TEST_F(Errors, AnAtomicWithoutRoomForItsAnswerIsRefused) {
    connect_pair();
    for (const std::uint32_t length : {0u, 4u, 16u}) {
        EXPECT_EQ(session.try_submit(rdma(Opcode::atomic_fetch_and_add, 1, length)), Refusal::misaligned_atomic);
        EXPECT_EQ(session.try_submit(rdma(Opcode::atomic_cmp_and_swp, 1, length)), Refusal::misaligned_atomic);
    }
    submit(rdma(Opcode::atomic_fetch_and_add, 2, 8));
    EXPECT_EQ(await_one().status, Status::success);
}

TEST_F(Errors, AQpThatForbidsRemoteReadsRefusesThem) {
    QueuePairOptions options = shape();
    options.remote_access = {.read = false, .write = true, .atomic = true};
    connect_pair(options, PathAttributes{});
    WorkRequest first = rdma(Opcode::rdma_write, 1, 8);
    submit(first);
    submit(rdma(Opcode::rdma_read, 2, 8));
    const auto completions = await(2);
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].status, Status::success);
    EXPECT_EQ(completions[1].status, Status::rem_inv_req_err);
}

TEST_F(Errors, WithoutAReceiveAndWithoutRetriesASendEndsInRnrRetryExceeded) {
    connect_with({.rnr_retry = 0, .min_rnr_timer = 1});
    submit({send(1, 8), send(2, 8)});
    const auto completions = await(2);
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].tag, 1u);
    EXPECT_EQ(completions[0].status, Status::rnr_retry_exc_err);
    EXPECT_EQ(completions[1].status, Status::wr_flush_err);
    EXPECT_EQ(session.cause(a.handle()), Status::rnr_retry_exc_err);
}

TEST_F(Errors, WithEndlessRnrRetriesASendWaitsForItsReceive) {
    connect_with({.rnr_retry = 7, .min_rnr_timer = 12});
    submit(send(1, 8));
    const auto quiet_until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    Completion none;
    while (std::chrono::steady_clock::now() < quiet_until) {
        ASSERT_EQ(session.poll({&none, 1}), 0u);
        test::give_way();
    }
    submit(recv(2, 64));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
}

TEST_F(Errors, APeerThatIsGoneEndsInRetryExceeded) {
    connect_with({.timeout = 12, .retry_count = 2});
    ASSERT_TRUE(b.close());
    submit({rdma(Opcode::rdma_write, 1, 8), rdma(Opcode::rdma_write, 2, 8)});
    const auto completions = await(2);
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].status, Status::retry_exc_err);
    EXPECT_EQ(completions[1].status, Status::wr_flush_err);
}

TEST_F(Errors, ClosingAQueuePairCompletesItsReceives) {
    connect_pair();
    for (std::uint64_t tag = 0; tag < 20; ++tag) {
        submit(recv(tag, 64));
    }
    const QpHandle old = b.handle();
    EXPECT_TRUE(b.close());
    const auto completions = await(20);
    ASSERT_EQ(completions.size(), 20u);
    for (std::uint64_t tag = 0; tag < 20; ++tag) {
        EXPECT_EQ(completions[tag].tag, tag);
        EXPECT_EQ(completions[tag].status, Status::wr_flush_err);
        EXPECT_EQ(completions[tag].qp, old);
    }
    EXPECT_EQ(session.state(old), QpState::closed);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Errors, ClosingASessionLeavesItsLastCompletionsToPoll) {
    connect_pair();
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(recv(tag, 64));
        submit(rdma(Opcode::rdma_write, 100 + tag, 8, tag % 2 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0}));
    }
    session.close();
    EXPECT_EQ(session.try_submit(rdma(Opcode::rdma_write, 1, 8)), Refusal::session_closed);
    const SessionFigures figures = session.figures();
    EXPECT_EQ(figures.accepted, 20u);
    await(figures.in_flight());
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Errors, StoppingTheRuntimeCompletesEverything) {
    connect_pair();
    for (std::uint64_t tag = 0; tag < 10; ++tag) {
        submit(recv(tag, 64));
    }
    EXPECT_TRUE(runtime.stop());
    EXPECT_EQ(await(10).size(), 10u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_THROW((void)runtime.open_session(), Error);
    EXPECT_THROW((void)a.info(), Error);
}

}  // namespace
}  // namespace pollcore::testing
