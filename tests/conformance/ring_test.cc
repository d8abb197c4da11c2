// Write rings. Messages arrive by RDMA write, and the worker finds them by looking at memory.
#include <array>

#include "give_way.hpp"
#include "message_stream.hpp"

namespace pollcore::testing {
namespace {

class WriteRings : public MessageStream {
protected:
    static constexpr std::uint32_t kRing = 8192;
    static constexpr std::uint32_t kLongest = kRing / 4 - 24;

    WriteRings() : MessageStream(config_for_rings()), ring(make_ring()) {}

    [[nodiscard]] ReceivePool make_ring(std::uint32_t bytes = kRing) {
        return runtime.create_write_ring({.session = &reader, .bytes = bytes, .messages = 32});
    }
    [[nodiscard]] QueuePairOptions with_ring(Session& first, const ReceivePool* pool) {
        QueuePairOptions options = shape(FlowControl::ring);
        options.shares[0].session = &first;
        options.pool = pool;
        options.coalesce_signals = coalesces;
        return options;
    }
    void connect_ends() {
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b);
        b.connect(info_a);
    }
    void connect_with_ring() {
        a = runtime.create_queue_pair(with_ring(session, nullptr));
        b = runtime.create_queue_pair(with_ring(reader, &ring));
        connect_ends();
    }
    Completion hear() {
        const auto heard = await(reader, 1);
        return heard.empty() ? Completion{} : heard.front();
    }
    void stream(std::uint64_t messages, bool pauses) { MessageStream::stream({&ring}, kLongest, messages, pauses); }
    void expect_bytes(const Completion& completion, std::size_t at, std::uint32_t length) {
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_TRUE(completion.pooled());
        EXPECT_TRUE(completion.from_recv_queue());
        EXPECT_EQ(completion.opcode, CompletionOpcode::recv);
        const std::span<const std::byte> message = ring.message(completion);
        ASSERT_EQ(message.size(), length);
        EXPECT_EQ(std::memcmp(message.data(), local.data() + at, length), 0);
    }

    ReceivePool ring;
    bool coalesces = false;
};

TEST_F(WriteRings, CarryMessagesOfAnyLengthWithoutAReceive) {
    connect_with_ring();
    for (std::uint32_t length = 0; length <= kLongest; length += length < 200 ? 1 : 37) {
        WorkRequest request = send(length, length);
        request.sge = local_sge(length, length % 61);
        submit(request);
        const Completion message = hear();
        expect_bytes(message, length % 61, length);
        EXPECT_EQ(message.qp, b.handle());
        EXPECT_EQ(message.flags & kWithImm, 0);
        const Completion sent = await_one();
        EXPECT_EQ(sent.tag, length);
        EXPECT_EQ(sent.opcode, CompletionOpcode::send);
        EXPECT_EQ(reader.release(message), Refusal::none);
    }
    EXPECT_EQ(runtime.worker_counters(0).receives.value(), 0u);
    Exercised::get().note("flow control", "write rings");
}

TEST_F(WriteRings, CarryInlineAndGatheredMessagesAndImmediates) {
    connect_with_ring();
    for (std::uint32_t length = 0; length <= 64; ++length) {
        WorkRequest request = send(length, 0);
        request.opcode = Opcode::send_with_imm;
        request.imm_data = 1000 + length;
        ASSERT_EQ(session.try_submit_inline(request, local.bytes().subspan(3, length)), Refusal::none);
        const Completion message = hear();
        expect_bytes(message, 3, length);
        EXPECT_NE(message.flags & kWithImm, 0);
        EXPECT_EQ(message.imm_data, 1000 + length);
        EXPECT_EQ(await_one().opcode, CompletionOpcode::send);
        EXPECT_EQ(reader.release(message), Refusal::none);
    }
    for (std::uint32_t cut = 0; cut <= 40; ++cut) {
        const std::array<Sge, 4> sges{local_sge(cut), local_sge(5, cut), local_sge(0, 1),
                                      local_sge(100 - cut, cut + 5)};
        ASSERT_EQ(session.try_submit(send(cut, 0), sges), Refusal::none);
        const Completion message = hear();
        expect_bytes(message, 0, 105);
        EXPECT_EQ(await_one().status, Status::success);
        EXPECT_EQ(reader.release(message), Refusal::none);
    }
}

TEST_F(WriteRings, CarryInlineMessagesBesideOthersOfABurst) {
    connect_with_ring();
    constexpr std::uint32_t kMessages = 16;
    for (std::uint32_t round = 0; round < 20; ++round) {
        std::vector<WorkRequest> burst;
        for (std::uint32_t i = 0; i < kMessages; ++i) {
            const std::uint32_t length = (round * kMessages + i) % 65;
            const WorkRequest request = WorkRequest::send(a.handle(), local_sge(length, i)).with_tag(i);
            burst.push_back(i % 3 != 0 ? request.with_inline(local.bytes().subspan(i, length)) : request);
        }
        submit(burst);
        for (std::uint32_t i = 0; i < kMessages; ++i) {
            const Completion message = hear();
            expect_bytes(message, i, (round * kMessages + i) % 65);
            EXPECT_EQ(reader.release(message), Refusal::none);
        }
        for (const Completion& sent : await(kMessages)) {
            EXPECT_EQ(sent.status, Status::success);
        }
    }
    EXPECT_EQ(runtime.worker_counters(0).flow_faults.value(), 0u);
}

TEST_F(WriteRings, KeepEverySenderAtTheReadersPace) {
    connect_with_ring();
    const std::uint64_t before = rnrs();
    stream(3000, true);
    EXPECT_EQ(rnrs(), before);
    EXPECT_GT(runtime.worker_counters(0).waits_for_credit.value(), 0u);
    EXPECT_EQ(runtime.worker_counters(0).flow_faults.value(), 0u);
    until([&] { return ring.counters().delivered.value() == 3000; });  // the worker counts after it has delivered
}

TEST_F(WriteRings, CarryMessagesWhoseSignalsAreCoalesced) {
    coalesces = true;
    connect_with_ring();
    stream(1000, true);
    EXPECT_EQ(runtime.worker_counters(0).flow_faults.value(), 0u);
    until([&] { return ring.counters().delivered.value() == 1000; });
}

TEST_F(WriteRings, GiveRoomBackInAnyOrder) {
    connect_with_ring();
    // The ring has 128 lines of 64 bytes. Thirty messages of four lines each leave eight lines free.
    std::vector<Completion> held;
    for (std::uint64_t i = 0; i < 30; ++i) {
        submit(send(i, 200));
        held.push_back(hear());
        EXPECT_EQ(await_one().tag, i);
    }
    until([&] { return ring.held().size() == 30; });  // the worker counts after it has delivered
    EXPECT_EQ(ring.held().front().later, 29u);
    submit(send(100, 1000));
    for (std::size_t i = 29; i > 0; --i) {
        EXPECT_EQ(reader.release(held[i]), Refusal::none);
    }
    until([&] { return ring.counters().released.value() == 29; });
    (void)runtime.open_session();  // when this call returns, the worker has made another round
    Completion none;
    EXPECT_EQ(reader.poll({&none, 1}), 0u) << "the oldest message still holds the room of the others";
    expect_bytes(held[0], 0, 200);
    EXPECT_EQ(reader.release(held[0]), Refusal::none);
    expect_bytes(hear(), 0, 1000);
    EXPECT_EQ(await_one().tag, 100u);
    // The first release repeats an earlier release. The second release names a message that never existed.
    Completion wrong = held[5];
    EXPECT_EQ(reader.release(wrong), Refusal::none);
    wrong.tag = pool_tag(ring.handle(), 100'000);
    EXPECT_EQ(reader.release(wrong), Refusal::none);
    until([&] { return ring.counters().bad_releases.value() == 2; });
    EXPECT_EQ(ring.counters().bad_releases.value(), 2u);
    EXPECT_EQ(ring.counters().held.value(), 1u);
}

TEST_F(WriteRings, WorkBothWaysAtOnce) {
    TestSession other(runtime.open_session({.pool_buffers = 40}));
    ReceivePool back = runtime.create_write_ring({.session = &other, .bytes = 4096, .messages = 8});
    a = runtime.create_queue_pair(with_ring(other, &back));
    b = runtime.create_queue_pair(with_ring(reader, &ring));
    connect_ends();
    constexpr std::uint64_t kEach = 1000;
    std::array<Session*, 2> sessions{&other, &reader};
    const std::array<const ReceivePool*, 2> pools{&back, &ring};
    std::array<std::uint64_t, 2> sent{};
    std::array<std::uint64_t, 2> ended{};
    std::array<std::uint64_t, 2> heard{};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while ((heard[0] < kEach || heard[1] < kEach || ended[0] < kEach || ended[1] < kEach) &&
           std::chrono::steady_clock::now() < deadline) {
        for (const std::size_t side : {0u, 1u}) {
            if (sent[side] < kEach && sent[side] - ended[side] < 16) {
                const std::size_t at = (side * 16 + sent[side] % 16) * 128;
                write_message(local.bytes().subspan(at, 100), sent[side]);
                WorkRequest request = send(sent[side], 100);
                request.sge = local_sge(100, at);
                request.qp = side == 0 ? a.handle() : b.handle();
                ASSERT_EQ(sessions[side]->try_submit(request), Refusal::none);
                ++sent[side];
            }
            Completion some[8];
            const std::size_t n = sessions[side]->poll(some);
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(some[i].status, Status::success);
                if (some[i].pooled()) {
                    expect_message(pools[side]->message(some[i]), heard[side]++);
                } else {
                    ++ended[side];
                }
            }
            while (sessions[side]->release({some, n}).refusal != Refusal::none) {
                test::give_way();
            }
        }
        test::give_way();
    }
    EXPECT_EQ(heard[0], kEach);
    EXPECT_EQ(heard[1], kEach);
}

TEST_F(WriteRings, LetOtherRequestsThroughInTheirTurn) {
    connect_with_ring();
    for (std::uint64_t i = 0; i < 32; ++i) {
        submit(send(2 * i, 500));
        submit(rdma(Opcode::rdma_write, 2 * i + 1, 64));
    }
    std::uint64_t ended = 0;
    std::uint64_t heard = 0;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while ((ended < 64 || heard < 32) && std::chrono::steady_clock::now() < deadline) {
        Completion some[16];
        const std::size_t n = session.poll(some);
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(some[i].status, Status::success);
            ASSERT_EQ(some[i].tag, ended++);
        }
        const std::size_t m = reader.poll(some);
        heard += m;
        (void)reader.release({some, m});
        test::give_way();
    }
    EXPECT_EQ(heard, 32u);
}

TEST_F(WriteRings, RefuseAMessageThatIsTooLongAndNameTheLimit) {
    connect_with_ring();
    // The session does not know the peer's limit yet, so only the worker can refuse this message.
    submit(send(1, kLongest + 1));
    EXPECT_EQ(await_one().status, Status::message_too_long);
    EXPECT_EQ(session.message_max(a.handle()), kLongest);
    EXPECT_EQ(ring.buffer_bytes(), kLongest);
    EXPECT_EQ(session.try_submit(send(2, kLongest + 1)), Refusal::message_too_long);
    submit(send(3, kLongest));
    expect_bytes(hear(), 0, kLongest);
    // A message to an end that has no ring is refused.
    WorkRequest back = send(4, 1);
    back.qp = b.handle();
    EXPECT_EQ(reader.try_submit(back), Refusal::none);
    EXPECT_EQ(await(reader, 1).at(0).status, Status::message_too_long);
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
}

TEST_F(WriteRings, TakeNoReceivesAndNothingThatNeedsOne) {
    connect_with_ring();
    EXPECT_EQ(reader.try_submit(recv(1, 8)), Refusal::not_receiver);
    EXPECT_EQ(session.try_submit(rdma(Opcode::rdma_write_with_imm, 1, 8)), Refusal::bad_opcode);
    WorkRequest request = send(1, 8);
    request.opcode = Opcode::send_with_inv;
    EXPECT_EQ(session.try_submit(request), Refusal::bad_opcode);
}

TEST_F(WriteRings, AreRefusedWhereTheyCannotBe) {
    const auto refused = [&](auto&& change) {
        QueuePairOptions options = with_ring(reader, &ring);
        change(options);
        EXPECT_THROW((void)runtime.create_queue_pair(options), Error);
    };
    ReceivePool buffers = runtime.create_receive_pool({.session = &reader, .buffers = 8, .buffer_bytes = 64});
    refused([](QueuePairOptions& options) { options.type = QpType::uc; });
    refused([](QueuePairOptions& options) { options.type = QpType::ud; });
    refused([](QueuePairOptions& options) { options.flow = FlowControl::off; });
    refused([](QueuePairOptions& options) { options.flow = FlowControl::credits; });
    refused([&](QueuePairOptions& options) { options.pool = &buffers; });
    refused([&](QueuePairOptions& options) { options.shares[0].session = &session; });
    b = runtime.create_queue_pair(with_ring(reader, &ring));
    refused([](QueuePairOptions&) {});  // refused, because another queue pair uses the ring already
    EXPECT_THROW(ring.close(), Error);
    for (const std::uint32_t bytes : {0u, 2048u, 5000u, 1u << 31}) {
        EXPECT_THROW((void)make_ring(bytes), Error) << bytes;
    }
    EXPECT_THROW((void)runtime.create_write_ring({.session = &reader, .messages = 1000}), Error);
    // An end with credits and an end with a ring do not connect.
    QueuePairOptions options = shape(FlowControl::credits);
    a = runtime.create_queue_pair(options);
    EXPECT_THROW(a.connect(b.info()), Error);
    EXPECT_THROW(b.connect(a.info()), Error);
}

TEST_F(WriteRings, AreAgreedByAddressToo) {
    Listener listener = runtime.listen(listen_address());
    a = runtime.create_queue_pair(with_ring(session, nullptr));
    b = runtime.create_queue_pair(with_ring(reader, &ring));
    std::thread caller([&] { (void)a.connect(listener.address(), patient()); });
    std::optional<ConnectionRequest> request = listener.next_request(kPatience);
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->flow(), FlowControl::ring);
    request->accept(b, patient());
    caller.join();
    stream(300, true);
}

TEST_F(WriteRings, BeginAgainAfterAResetAndKeepWhatIsHeld) {
    connect_with_ring();
    for (std::uint64_t life = 0; life < 5; ++life) {
        stream(100, false);
        submit(send(1, 700));
        const Completion kept = hear();
        EXPECT_EQ(await_one().status, Status::success);
        // The ring does not have room for all these messages, so some wait at the sender.
        for (std::uint64_t i = 0; i < 20; ++i) {
            submit(send(i, 1000, i % 2 == 0 ? std::uint8_t{kSignaled} : std::uint8_t{0}));
        }
        EXPECT_TRUE(a.reset());
        EXPECT_TRUE(b.reset());
        Completion last;
        for (bool ended = false; !ended;) {
            last = hear();
            ASSERT_TRUE(last.pooled());
            ended = !last.ok();
            EXPECT_EQ(reader.release(last), Refusal::none);
        }
        EXPECT_EQ(last.status, Status::qp_closed);
        Completion some[32];
        while (session.poll(some) != 0) {
        }
        EXPECT_EQ(session.figures().in_flight(), 0u);
        connect_ends();
        // In the new life, too, the unreleased message keeps the room of all messages behind it.
        const std::uint64_t waited = runtime.worker_counters(0).waits_for_credit.value();
        for (std::uint64_t i = 0; i < 20; ++i) {
            submit(send(i, 1000));
        }
        until([&] { return runtime.worker_counters(0).waits_for_credit.value() > waited; });
        expect_bytes(kept, 0, 700);
        EXPECT_EQ(reader.release(kept), Refusal::none);
        for (std::uint64_t i = 0; i < 20; ++i) {
            const Completion message = hear();
            expect_bytes(message, 0, 1000);
            EXPECT_EQ(reader.release(message), Refusal::none);
            EXPECT_EQ(await_one().tag, i);
        }
        stream(50, true);
    }
    EXPECT_EQ(runtime.worker_counters(0).flow_faults.value(), 0u);
}

TEST_F(WriteRings, ServeOneQueuePairAfterTheOther) {
    for (int life = 0; life < 4; ++life) {
        connect_with_ring();
        stream(60, false);
        submit(send(1, 300));
        const Completion kept = hear();
        EXPECT_EQ(await_one().status, Status::success);
        EXPECT_TRUE(a.close());
        EXPECT_TRUE(b.close());
        const Completion end = hear();
        EXPECT_EQ(end.status, Status::qp_closed);
        expect_bytes(kept, 0, 300);
        const std::array<Completion, 2> both{kept, end};
        EXPECT_EQ(reader.release(both).accepted, 2u);
    }
    ring.close();
}

TEST_F(WriteRings, TellTheEndBehindTheLastMessage) {
    connect_with_ring();
    for (std::uint64_t i = 0; i < 20; ++i) {
        submit(send(i, 100));
    }
    EXPECT_EQ(await(20).size(), 20u);
    a.close();
    b.disconnect();
    for (std::uint64_t i = 0; i < 20; ++i) {
        EXPECT_EQ(hear().status, Status::success);
    }
    const Completion end = hear();
    EXPECT_TRUE(end.pooled());
    EXPECT_NE(end.status, Status::success);
    EXPECT_EQ(ring.message(end).size(), 0u);
}

TEST(WriteRingsAsleep, AreRefusedSinceNothingWouldWakeTheWorker) {
    Config config = test_config();
    config.workers[0].idle = IdlePolicy::event;
    TestRuntime runtime(config);
    TestSession session(runtime.open_session({.pool_buffers = 40}));
    try {
        (void)runtime.create_write_ring({.session = &session, .messages = 8});
        FAIL() << "a worker that sleeps was given a write ring";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), EOPNOTSUPP);
        EXPECT_NE(std::string(error.what()).find("\"w0\", which may sleep"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace pollcore::testing
