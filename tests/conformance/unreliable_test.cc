// Unreliable connections: which opcodes they accept, and which messages are lost silently.
#include <atomic>
#include <thread>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class Unreliable : public Conformance {
protected:
    Unreliable() { connect_pair(uc(), {}); }

    [[nodiscard]] QueuePairOptions uc() {
        QueuePairOptions options = shape();
        options.type = QpType::uc;
        return options;
    }
    /// Returns when the peer has handled everything that QP a has sent so far. On UC a completion does not prove
    /// arrival. The peer handles messages in order, so it sees this last write after everything else.
    void await_arrival() {
        auto* word = reinterpret_cast<std::uint64_t*>(local.data() + kBytes - 16);
        auto* there = reinterpret_cast<std::uint64_t*>(remote.data() + kBytes - 8);
        *word = ++mark_;
        WorkRequest request = rdma(Opcode::rdma_write, 0, 8, 0);
        request.sge = local_sge(8, kBytes - 16);
        request.remote_addr = remote.addr() + kBytes - 8;
        submit(request);
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        // Acquire: later reads by this thread see everything that the device wrote before.
        while (std::atomic_ref(*there).load(std::memory_order_acquire) != mark_) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the last write did not arrive";
            test::give_way();
        }
    }
    void expect_well() {
        EXPECT_EQ(session.state(a.handle()), QpState::ready);
        EXPECT_EQ(session.state(b.handle()), QpState::ready);
    }

private:
    std::uint64_t mark_ = 0;
};

TEST_F(Unreliable, SendsAndWritesArriveWithTheirImmediates) {
    for (const std::uint32_t length : {0u, 1u, 64u, 1024u, 1025u, 5000u, 40000u}) {
        for (const Opcode opcode :
             {Opcode::send, Opcode::send_with_imm, Opcode::rdma_write, Opcode::rdma_write_with_imm}) {
            fill(remote, 9);
            const bool takes_receive = opcode != Opcode::rdma_write;
            const bool write = opcode == Opcode::rdma_write || opcode == Opcode::rdma_write_with_imm;
            if (takes_receive) {
                submit(recv(1, kBytes));
            }
            WorkRequest request = rdma(opcode, 2, length);
            request.imm_data = 0x01020304;
            submit(request);
            const auto completions = await(takes_receive ? 2 : 1);
            const auto sent = of(completions, a.handle(), false);
            ASSERT_EQ(sent.size(), 1u);
            EXPECT_EQ(sent[0].status, Status::success);
            EXPECT_EQ(sent[0].opcode, write ? CompletionOpcode::rdma_write : CompletionOpcode::send);
            if (takes_receive) {
                const auto received = of(completions, b.handle(), true);
                ASSERT_EQ(received.size(), 1u);
                EXPECT_EQ(received[0].status, Status::success);
                EXPECT_EQ(received[0].opcode, write ? CompletionOpcode::recv_rdma_with_imm : CompletionOpcode::recv);
                EXPECT_EQ(received[0].byte_len, length);
                EXPECT_EQ((received[0].flags & kWithImm) != 0, has_imm(opcode));
                EXPECT_EQ(received[0].imm_data, has_imm(opcode) ? 0x01020304u : 0u);
            } else {
                await_arrival();
            }
            EXPECT_EQ(std::memcmp(local.data(), remote.data(), length), 0) << length << " bytes";
        }
    }
}

TEST_F(Unreliable, ReadsAndAtomicsAreRefusedAtOnce) {
    for (const Opcode opcode : {Opcode::rdma_read, Opcode::atomic_cmp_and_swp, Opcode::atomic_fetch_and_add}) {
        EXPECT_EQ(session.try_submit(rdma(opcode, 1, 8)), Refusal::bad_opcode);
    }
    expect_well();
}

TEST_F(Unreliable, AMessageThatMeetsNoReceiveIsLostAndNobodyIsTold) {
    submit(send(1, 5000));
    EXPECT_EQ(await_one().status, Status::success);
    WorkRequest write = rdma(Opcode::rdma_write_with_imm, 2, 8);
    write.remote_addr += 4096;
    submit(write);
    EXPECT_EQ(await_one().status, Status::success);
    await_arrival();
    submit(recv(3, 8192));
    submit(send(4, 100));
    const auto received = of(await(2), b.handle(), true);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].tag, 3u);
    EXPECT_EQ(received[0].byte_len, 100u);
    EXPECT_FALSE(received[0].flags & kWithImm);
    expect_well();
}

TEST_F(Unreliable, AWriteThatIsNotPermittedIsDroppedAndNobodyIsTold) {
    fill(remote, 9);
    WorkRequest request = rdma(Opcode::rdma_write, 1, 100);
    request.rkey ^= 0x5500;
    submit(request);
    EXPECT_EQ(await_one().status, Status::success);
    request = rdma(Opcode::rdma_write, 2, 100);
    request.remote_addr = remote.addr() + kBytes - 50;  // reaches past the end of the region
    submit(request);
    EXPECT_EQ(await_one().status, Status::success);
    await_arrival();
    EXPECT_EQ(remote.data()[0], std::byte{9});
    EXPECT_EQ(remote.data()[kBytes - 50], static_cast<std::byte>((kBytes - 50) * 31 + ((kBytes - 50) >> 8) + 9));
    expect_well();
}

TEST_F(Unreliable, AQueuePairThatForbidsWritesDropsThem) {
    QueuePairOptions options = uc();
    options.remote_access.write = false;
    connect_pair(options, {});
    fill(remote, 9);
    submit(rdma(Opcode::rdma_write, 1, 100));
    EXPECT_EQ(await_one().status, Status::success);
    submit(recv(2, 64, 8192));
    submit(send(3, 10));
    EXPECT_EQ(await(2).size(), 2u);  // the message has arrived, so the write before it has arrived, too
    EXPECT_EQ(remote.data()[0], std::byte{9});
    expect_well();
}

TEST_F(Unreliable, AReceiveThatIsTooShortFailsTheReceiverAlone) {
    submit(recv(1, 10));
    submit(recv(2, 10));
    submit(send(3, 11));
    const auto completions = await(3);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(received.size(), 2u);
    EXPECT_EQ(received[0].status, expected(Status::loc_len_err, Status::loc_qp_op_err));
    EXPECT_EQ(received[1].status, Status::wr_flush_err);
    const auto sent = of(completions, a.handle(), false);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].status, Status::success);
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
    EXPECT_EQ(session.state(b.handle()), QpState::error);
}

TEST_F(Unreliable, ALocalErrorEndsTheSendQueueAndFlushesWhatFollows) {
    WorkRequest bad = rdma(Opcode::rdma_write, 1, 8);
    bad.sge.lkey ^= 0x5500;
    const WorkRequest both[] = {bad, rdma(Opcode::rdma_write, 2, 8)};
    ASSERT_EQ(session.try_submit(both).accepted, 2u);
    const auto completions = await(2);
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].tag, 1u);
    EXPECT_EQ(completions[0].status, expected(Status::loc_prot_err, Status::loc_qp_op_err));
    EXPECT_EQ(completions[1].tag, 2u);
    EXPECT_EQ(completions[1].status, Status::wr_flush_err);
    EXPECT_EQ(session.try_submit(rdma(Opcode::rdma_write, 3, 8)), Refusal::qp_in_error);
    EXPECT_EQ(session.cause(a.handle()), completions[0].status);
    EXPECT_TRUE(a.close());
}

TEST_F(Unreliable, UnsignaledWorkIsRetiredAndAClosedQueuePairLosesNone) {
    std::uint64_t accepted = 0;
    for (std::uint64_t tag = 0; tag < 500; ++tag) {
        const Refusal refusal = session.try_submit(rdma(Opcode::rdma_write, tag, 64, 0));
        if (refusal == Refusal::send_queue_full) {
            test::give_way();
            continue;
        }
        ASSERT_EQ(refusal, Refusal::none);
        ++accepted;
    }
    submit(recv(1000, 64));
    EXPECT_TRUE(a.close());
    EXPECT_TRUE(b.close());
    const SessionFigures before = session.figures();
    EXPECT_EQ(before.accepted, accepted + 1);
    Completion some[600];
    std::uint64_t flushed = 0;
    for (std::size_t i = session.poll(some); i-- > 0;) {
        EXPECT_FALSE(some[i].ok());
        flushed += !some[i].from_recv_queue();
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_EQ(session.figures().retired + flushed, accepted);
}

TEST_F(Unreliable, BothEndsMustBeOfOneType) {
    a = runtime.create_queue_pair(uc());
    b = runtime.create_queue_pair(shape());
    try {
        a.connect(b.info());
        FAIL() << "was connected";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::wrong_protocol_type) << error.what();
    }
    EXPECT_EQ(session.state(a.handle()), QpState::init);
}

// The software device connects by names, so UC connects by address, too. A verbs device uses rdma_cm, which has only
// reliable connections, so the call is refused.
TEST_F(Unreliable, ConnectByNameAndAreRefusedByRdmaCm) {
    a = runtime.create_queue_pair(uc());
    b = runtime.create_queue_pair(uc());
    Listener listener = runtime.listen(listen_address());
    if (TestDevice::get().verbs) {
        try {
            a.connect(listener.address());
            FAIL() << "rdma_cm connected a UC queue pair";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), std::errc::operation_not_supported) << error.what();
        }
        EXPECT_EQ(session.state(a.handle()), QpState::init);
        return;
    }
    std::thread answer([&] {
        auto request = listener.next_request(kPatience);
        ASSERT_TRUE(request.has_value());
        request->accept(b);
    });
    a.connect(listener.address());
    answer.join();
    submit(recv(1, 64));
    submit(send(2, 32));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
}

}  // namespace
}  // namespace pollcore::testing
