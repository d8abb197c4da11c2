// Datagrams: the layout of the receive buffer, the sender's address, the way back to the sender, and datagrams that are
// lost silently.
#include <algorithm>
#include <array>
#include <set>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

constexpr std::uint32_t kQkey = 0x11223344;

class Datagrams : public Conformance {
protected:
    Datagrams() : wide(runtime.open_session({.wide_completions = true})) {
        a = runtime.create_queue_pair(ud(session));
        b = runtime.create_queue_pair(ud(session));
        to_b = runtime.create_address_handle(b.info());
    }

    [[nodiscard]] QueuePairOptions ud(Session& poster) {
        QueuePairOptions options = shape();
        options.shares[0].session = &poster;
        options.type = QpType::ud;
        options.qkey = kQkey;
        return options;
    }
    [[nodiscard]] WorkRequest datagram(std::uint64_t tag, std::uint32_t length, std::uint8_t flags = kSignaled) const {
        WorkRequest request = send(tag, length, flags);
        request.ud = {to_b.handle(), b.info().qp_num};
        request.remote_qkey = kQkey;
        return request;
    }
    std::vector<WideCompletion> await_wide(std::size_t n) { return Conformance::await_wide(wide, n); }
    /// The receives may belong to another session than the datagrams, and there is no order between sessions. A
    /// datagram that finds no receive is lost, so a test waits until the receives are posted.
    void await_receives_posted(std::uint64_t n) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (runtime.worker_counters(0).receives.value() < n) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the worker has not posted them";
            test::give_way();
        }
    }
    /// Checks that all datagrams before this one were lost. A lost datagram leaves no trace, but datagrams keep their
    /// order: when this last datagram arrives, no earlier one can still arrive.
    void expect_only_the_last_arrives(std::uint64_t receive_tag, std::uint32_t length) {
        submit(datagram(900, length));
        const auto received = of(await(2), b.handle(), true);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(received[0].tag, receive_tag);
        EXPECT_EQ(received[0].status, Status::success);
        EXPECT_EQ(received[0].payload_length(), length);
    }

    TestSession wide;
    AddressHandle to_b;
};

TEST_F(Datagrams, GoToTheAddressThatTheAttributesName) {
    const PortAttributes port = runtime.query_port();
    const QpInfo info = b.info();
    const auto gids = runtime.gids();
    const auto found = std::find_if(gids.begin(), gids.end(), [&](const auto& one) { return one.gid == info.gid; });
    ASSERT_NE(found, gids.end());
    AddressAttributes address{
        .dgid = info.gid, .sgid_index = static_cast<std::uint8_t>(found->gid_index), .port_num = port.port_num};
    to_b = runtime.create_address_handle(address);
    submit(recv(1, 2048));
    expect_only_the_last_arrives(1, 64);
    address.port_num = static_cast<std::uint8_t>(port.port_num + 1);
    try {
        (void)runtime.create_address_handle(address);
        ADD_FAILURE() << "the port is not the configuration's";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::invalid_argument) << error.what();
    }
}

TEST_F(Datagrams, ArriveBehindAGrh) {
    for (const std::uint32_t length : {0u, 1u, 64u, 1000u, 1024u}) {
        fill(remote, 9);
        submit(recv(1, 2048));
        submit(datagram(2, length));
        const auto completions = await(2);
        const auto sent = of(completions, a.handle(), false);
        const auto received = of(completions, b.handle(), true);
        ASSERT_EQ(sent.size(), 1u);
        ASSERT_EQ(received.size(), 1u);
        EXPECT_EQ(sent[0].status, Status::success);
        EXPECT_EQ(sent[0].opcode, CompletionOpcode::send);
        EXPECT_EQ(sent[0].flags, 0);
        EXPECT_EQ(received[0].status, Status::success);
        EXPECT_EQ(received[0].opcode, CompletionOpcode::recv);
        EXPECT_EQ(received[0].flags, kFromRecvQueue | kDatagram | kWithGrh);
        EXPECT_EQ(received[0].byte_len, kGrhBytes + length);
        EXPECT_EQ(received[0].payload_offset(), kGrhBytes);
        EXPECT_EQ(received[0].payload_length(), length);
        EXPECT_EQ(std::memcmp(local.data(), remote.data() + kGrhBytes, length), 0) << length << " bytes";
        EXPECT_EQ(remote.data()[kGrhBytes + length],
                  static_cast<std::byte>((kGrhBytes + length) * 31 + ((kGrhBytes + length) >> 8) + 9));
        // The datagram's source and destination are this port. With RoCE v2 over IPv4, the second half of the room for
        // the GRH contains the IPv4 header (annex A17).
        const auto gid = b.info().gid;
        constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        if (TestDevice::get().verbs && std::memcmp(gid.data(), kMapped.data(), kMapped.size()) == 0) {
            EXPECT_EQ(std::memcmp(remote.data() + 32, gid.data() + 12, 4), 0) << "source address";
            EXPECT_EQ(std::memcmp(remote.data() + 36, gid.data() + 12, 4), 0) << "destination address";
        } else {
            EXPECT_EQ(std::memcmp(remote.data() + 8, gid.data(), 16), 0) << "source GID";
            EXPECT_EQ(std::memcmp(remote.data() + 24, gid.data(), 16), 0) << "destination GID";
        }
    }
}

TEST_F(Datagrams, BringTheirImmediateAndInlineBytes) {
    submit(recv(1, 256));
    WorkRequest request = datagram(2, 0);
    request.opcode = Opcode::send_with_imm;
    request.imm_data = 0x01020304;
    const std::array<std::byte, 3> bytes{std::byte{7}, std::byte{8}, std::byte{9}};
    ASSERT_EQ(session.try_submit_inline(request, bytes), Refusal::none);
    const auto received = of(await(2), b.handle(), true);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_TRUE(received[0].flags & kWithImm);
    EXPECT_EQ(received[0].imm_data, 0x01020304u);
    EXPECT_EQ(received[0].payload_length(), 3u);
    EXPECT_EQ(std::memcmp(remote.data() + kGrhBytes, bytes.data(), 3), 0);
}

TEST_F(Datagrams, MayBeInlineBesideOthersOfABurst) {
    const std::array<std::byte, 40> bytes{std::byte{7}, std::byte{8}, std::byte{9}};
    for (std::uint64_t i = 0; i < 4; ++i) {
        submit(recv(i, 256, 256 * i));
    }
    submit({datagram(10, 24), datagram(11, 0).with_inline(bytes),
            datagram(12, 0).with_inline(std::span(bytes).first(3)), datagram(13, 8)});
    const auto received = of(await(8), b.handle(), true);
    ASSERT_EQ(received.size(), 4u);
    const std::array<std::uint32_t, 4> lengths{24, 40, 3, 8};
    for (std::size_t i = 0; i < received.size(); ++i) {
        EXPECT_EQ(received[i].status, Status::success);
        EXPECT_EQ(received[i].payload_length(), lengths[i]);
        const void* sent = i == 0 || i == 3 ? local.data() : bytes.data();
        EXPECT_EQ(std::memcmp(remote.data() + 256 * i + kGrhBytes, sent, lengths[i]), 0);
    }
}

TEST_F(Datagrams, AWideCompletionSaysWhoSentIt) {
    b = runtime.create_queue_pair(ud(wide));
    std::vector<QueuePair> senders;
    for (std::uint64_t i = 0; i < 4; ++i) {
        senders.push_back(runtime.create_queue_pair(ud(wide)));
        submit(wide, recv(100 + i, 128, 4096 + 128 * i));
    }
    for (std::uint64_t i = 0; i < senders.size(); ++i) {
        WorkRequest request = datagram(i, 8);
        request.qp = senders[i].handle();
        submit(wide, request);
    }
    std::multiset<std::uint32_t> from;
    for (const WideCompletion& completion : await_wide(8)) {
        EXPECT_EQ(completion.status, Status::success);
        if (completion.from_recv_queue()) {
            EXPECT_EQ(completion.qp, b.handle());
            EXPECT_EQ(completion.payload_length(), 8u);
            EXPECT_EQ(completion.slid, 0);
            EXPECT_EQ(completion.sl, 0);
            EXPECT_EQ(completion.pkey_index, 0);
            EXPECT_EQ(completion.dlid_path_bits, 0);
            from.insert(completion.src_qp);
        } else {
            EXPECT_EQ(completion.src_qp, 0u);
        }
        EXPECT_EQ(completion.device_time, 0u);
        EXPECT_EQ(completion.reserved, 0u);
    }
    ASSERT_EQ(from.size(), 4u);
    for (const QueuePair& sender : senders) {
        EXPECT_EQ(from.count(sender.qp_num()), 1u);
    }
}

TEST_F(Datagrams, AreAnsweredByTheWayBack) {
    b = runtime.create_queue_pair(ud(wide));
    submit(wide, recv(1, 256));
    await_receives_posted(1);
    submit(datagram(2, 5));
    EXPECT_EQ(await_one().status, Status::success);
    const WideCompletion asked = await_wide(1).at(0);
    ASSERT_EQ(asked.status, Status::success);
    const AddressHandle back = runtime.create_address_handle(asked, remote.bytes());

    WorkRequest receive = recv(3, 256, 8192);
    receive.qp = a.handle();
    submit(receive);
    await_receives_posted(2);
    WorkRequest answer = datagram(4, 6);
    answer.qp = b.handle();
    answer.ud = {back.handle(), asked.src_qp};
    submit(wide, answer);
    const Completion received = await_one();
    EXPECT_EQ(received.tag, 3u);
    EXPECT_EQ(received.status, Status::success);
    EXPECT_EQ(received.payload_length(), 6u);
    EXPECT_EQ(await_wide(1).at(0).tag, 4u);
    Exercised::get().note("connections", "the way back of a datagram");
}

TEST_F(Datagrams, TheWayBackIsOnlyInADatagramThatArrived) {
    WideCompletion none;
    EXPECT_THROW((void)runtime.create_address_handle(none, remote.bytes()), Error);
    none.flags = kFromRecvQueue | kDatagram | kWithGrh;
    EXPECT_THROW((void)runtime.create_address_handle(none, remote.bytes().first(39)), Error);
    none.status = Status::wr_flush_err;
    EXPECT_THROW((void)runtime.create_address_handle(none, remote.bytes()), Error);
}

TEST_F(Datagrams, WithTheWrongQkeyAreDropped) {
    submit(recv(1, 256));
    WorkRequest wrong = datagram(2, 64);
    wrong.remote_qkey = kQkey + 1;
    submit(wrong);
    EXPECT_EQ(await_one().status, Status::success);
    expect_only_the_last_arrives(1, 8);
}

TEST_F(Datagrams, ToAQueuePairThatIsNotThereAreLost) {
    submit(recv(1, 256));
    WorkRequest nowhere = datagram(2, 64);
    nowhere.ud.remote_qpn ^= 0x100;
    submit(nowhere);
    EXPECT_EQ(await_one().status, Status::success);
    expect_only_the_last_arrives(1, 8);
}

TEST_F(Datagrams, ThatMeetNoReceiveAreLost) {
    submit(datagram(2, 64));
    EXPECT_EQ(await_one().status, Status::success);
    // The datagram has left, but nothing tells when it arrives. It has certainly arrived when a few later datagrams
    // have reached another queue pair.
    const QueuePair c = runtime.create_queue_pair(ud(session));
    for (int i = 0; i < 20; ++i) {
        WorkRequest other = recv(1, 256);
        other.qp = c.handle();
        submit(other);
        other = datagram(3, 8);
        other.ud.remote_qpn = c.qp_num();
        submit(other);
        EXPECT_EQ(await(2).size(), 2u);
    }
    submit(recv(4, 256));
    expect_only_the_last_arrives(4, 9);
}

TEST_F(Datagrams, LongerThanTheMtuFailLocally) {
    const std::uint32_t mtu = b.info().mtu;
    submit(recv(1, kBytes));
    submit(datagram(2, mtu));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    submit(recv(3, kBytes));
    submit(datagram(4, mtu + 1));
    const Completion sent = await_one();
    EXPECT_EQ(sent.tag, 4u);
    EXPECT_EQ(sent.status, expected(Status::loc_len_err, Status::success));
    if (sent.ok()) {
        expect_only_the_last_arrives(3, 8);
    } else {
        EXPECT_EQ(session.try_submit(datagram(5, 8)), Refusal::qp_in_error);
    }
}

TEST_F(Datagrams, AReceiveThatIsTooShortFailsTheReceiverAlone) {
    submit(recv(1, kGrhBytes + 7));
    submit(recv(2, 256));
    submit(datagram(3, 8));
    const auto completions = await(3);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(received.size(), 2u);
    EXPECT_EQ(received[0].status, expected(Status::loc_len_err, Status::loc_qp_op_err));
    EXPECT_EQ(received[1].status, Status::wr_flush_err);
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
    EXPECT_EQ(session.state(b.handle()), QpState::error);
}

TEST_F(Datagrams, AreSendsAndNothingElse) {
    for (const Opcode opcode : {Opcode::rdma_write, Opcode::rdma_write_with_imm, Opcode::rdma_read,
                                Opcode::atomic_cmp_and_swp, Opcode::atomic_fetch_and_add}) {
        EXPECT_EQ(session.try_submit(rdma(opcode, 1, 8)), Refusal::bad_opcode);
    }
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
}

TEST_F(Datagrams, HaveNoConnection) {
    EXPECT_THROW(a.connect(b.info()), Error);
    EXPECT_THROW(a.connect("10.0.0.1:1"), Error);
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
}

TEST_F(Datagrams, ByAHandleThatIsStaleForeignOrNobodysFail) {
    const AhHandle stale = [&] { return runtime.create_address_handle(b.info()).handle(); }();
    const ProtectionDomain domain = runtime.create_protection_domain();
    const AddressHandle foreign = runtime.create_address_handle(b.info(), {}, "", &domain);
    submit(recv(1, 256));
    for (const AhHandle handle :
         {stale, foreign.handle(), AhHandle{}, AhHandle{65535, 65535},
          AhHandle{to_b.handle().index, static_cast<std::uint16_t>(to_b.handle().generation + 1)}}) {
        WorkRequest request = datagram(2, 64);
        request.ud = {handle, b.qp_num()};
        submit(request);
        const Completion completion = await_one();
        EXPECT_EQ(completion.tag, 2u);
        EXPECT_EQ(completion.status, Status::request_refused);
        EXPECT_TRUE(completion.flags & kByRuntime);
    }
    expect_only_the_last_arrives(1, 8);
}

TEST_F(Datagrams, AHandleGoesOnlyWhenNoSendNamesIt) {
    for (int round = 0; round < 20; ++round) {
        std::uint64_t submitted = 0;
        while (submitted < 32) {
            submitted += session.try_submit(datagram(submitted, 8)) == Refusal::none;
        }
        for (;;) {
            try {
                to_b.destroy();
                break;
            } catch (const Error& error) {
                ASSERT_EQ(error.code(), std::errc::device_or_resource_busy) << error.what();
                test::give_way();
            }
        }
        // All these datagrams were sent while their address handle existed.
        for (const Completion& completion : await(submitted)) {
            EXPECT_EQ(completion.status, Status::success);
        }
        EXPECT_FALSE(to_b.valid());
        to_b = runtime.create_address_handle(b.info());
    }
}

TEST_F(Datagrams, UnsignaledOnesAreRetiredAndAClosedQueuePairLosesNone) {
    std::uint64_t accepted = 0;
    for (std::uint64_t tag = 0; tag < 500; ++tag) {
        const Refusal refusal = session.try_submit(datagram(tag, 64, 0));
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
    EXPECT_EQ(session.figures().accepted, accepted + 1);
    Completion some[600];
    std::uint64_t flushed = 0;
    for (std::size_t i = session.poll(some); i-- > 0;) {
        flushed += !some[i].from_recv_queue();
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_EQ(session.figures().retired + flushed, accepted);
}

TEST_F(Datagrams, ASessionOfWideCompletionsServesConnectionsToo) {
    QueuePairOptions options = shape();
    options.shares[0].session = &wide;
    connect_pair(options, {});
    for (std::uint64_t round = 0; round < 3000; ++round) {  // more rounds than the completion ring has slots
        submit(wide, recv(2 * round, 64));
        submit(wide, send(2 * round + 1, 16));
        for (const WideCompletion& completion : await_wide(2)) {
            ASSERT_EQ(completion.status, Status::success);
            ASSERT_EQ(completion.tag, 2 * round + !completion.from_recv_queue());
            ASSERT_EQ(completion.src_qp, 0u);
            ASSERT_EQ(completion.payload_offset(), 0u);
        }
    }
    // A session with wide completions can also be polled for ordinary completions.
    submit(wide, rdma(Opcode::rdma_write, 7, 8));
    EXPECT_EQ(await(wide, 1).at(0).tag, 7u);
    EXPECT_EQ(wide.figures().in_flight(), 0u);
}

}  // namespace
}  // namespace pollcore::testing
