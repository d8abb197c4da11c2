// Flow control by credits: at any pace of the receiver, no send finds the receiver without a posted receive.
#include <array>
#include <cstring>
#include <map>
#include <thread>

#include "give_way.hpp"
#include "message_stream.hpp"

namespace pollcore::testing {
namespace {

class Credits : public MessageStream {
protected:
    static constexpr std::uint32_t kBuffer = 512;
    // Without RNR retries, the first message that finds no receive ends the connection.
    static constexpr PathAttributes kNoRetries{.rnr_retry = 0, .min_rnr_timer = 1};

    Credits() : pool(runtime.create_receive_pool({.session = &reader, .buffers = 64, .buffer_bytes = kBuffer})) {}

    /// Creates a and b. The receives of b come from the pool.
    void make_ends(FlowControl flow) {
        QueuePairOptions options = shape();
        options.flow = flow;
        options.recv_depth = 4;
        a = runtime.create_queue_pair(options);
        options.shares[0].session = &reader;
        options.recv_depth = 8;
        options.pool = &pool;
        b = runtime.create_queue_pair(options);
    }
    void connect_ends(const PathAttributes& path = kNoRetries) {
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b, path);
        b.connect(info_a, path);
    }
    void connect_with(FlowControl flow, const PathAttributes& path = kNoRetries) {
        make_ends(flow);
        connect_ends(path);
    }
    void stream(std::uint64_t messages, bool pauses) { MessageStream::stream({&pool}, kBuffer, messages, pauses); }

    ReceivePool pool;
};

TEST_F(Credits, LetNoMessageMeetAReceiverThatIsNotReady) {
    connect_with(FlowControl::credits);
    const std::uint64_t before = rnrs();
    stream(3000, true);
    EXPECT_EQ(rnrs(), before);
    EXPECT_GT(runtime.worker_counters(0).waits_for_credit.value(), 0u);
    EXPECT_GT(runtime.worker_counters(0).grants.value(), 0u);
    EXPECT_EQ(runtime.worker_counters(0).flow_faults.value(), 0u);
    Exercised::get().note("flow control", "credits");
}

// Shows that the test above can fail: without credits, this traffic meets a receiver that is not ready.
TEST_F(Credits, WithoutThemTheSameTrafficMeetsThem) {
    connect_with(FlowControl::off, {.rnr_retry = 7, .min_rnr_timer = 1});
    const std::uint64_t before = rnrs();
    stream(500, true);
    EXPECT_GT(rnrs(), before);
}

TEST_F(Credits, WorkBothWaysAtOnce) {
    QueuePairOptions options = shape(FlowControl::credits);
    options.recv_depth = 4;
    connect_pair(options, kNoRetries);
    const std::uint64_t before = rnrs();
    std::uint64_t posted[2] = {};
    std::uint64_t sent[2] = {};
    std::uint64_t heard[2] = {};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while ((heard[0] < 500 || heard[1] < 500) && std::chrono::steady_clock::now() < deadline) {
        for (const int side : {0, 1}) {
            const QpHandle qp = side == 0 ? a.handle() : b.handle();
            if (posted[side] - heard[side] < 3 && posted[side] < 500) {
                submit({.tag = posted[side]++,
                        .sge = remote_sge(64, side * 64),
                        .qp = qp,
                        .opcode = Opcode::recv,
                        .num_sge = 1});
            }
            WorkRequest request = send(1000 + sent[side], 8);
            request.qp = qp;
            if (sent[side] < 500 && session.try_submit(request) == Refusal::none) {
                ++sent[side];
            }
        }
        Completion some[16];
        const std::size_t n = session.poll(some);
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(some[i].status, Status::success);
            if (some[i].from_recv_queue()) {
                const int side = some[i].qp == a.handle() ? 0 : 1;
                ASSERT_EQ(some[i].tag, heard[side]++);
            }
        }
        if (n == 0) {
            test::give_way();
        }
    }
    EXPECT_EQ(heard[0], 500u);
    EXPECT_EQ(heard[1], 500u);
    EXPECT_EQ(rnrs(), before);
}

TEST_F(Credits, RefuseAMessageThatIsTooLongAndNameTheLimit) {
    connect_with(FlowControl::credits);
    submit(send(1, 8));
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(session.message_max(a.handle()), kBuffer);
    EXPECT_EQ(session.try_submit(send(2, kBuffer + 1)), Refusal::message_too_long);
    submit(send(3, kBuffer));
    EXPECT_EQ(await_one().tag, 3u);
    EXPECT_EQ(session.state(a.handle()), QpState::ready);
}

TEST_F(Credits, LetInlinePayloadsBesideOtherMessagesWaitInOrder) {
    connect_with(FlowControl::credits);
    constexpr std::uint64_t kMessages = 40;  // five times the peer's receives
    std::array<std::array<std::byte, 64>, 8> payloads;
    std::uint64_t sent = 0;
    std::uint64_t heard = 0;
    const std::uint64_t before = rnrs();
    until([&] {
        std::vector<WorkRequest> burst;
        for (std::size_t i = 0; i < payloads.size() && sent + i < kMessages; ++i) {
            const std::uint64_t number = sent + i;
            const auto length = static_cast<std::uint32_t>(16 + number % 49);
            if (number % 2 == 0) {
                const std::span<std::byte> payload = std::span(payloads[i]).first(length);
                write_message(payload, number);
                burst.push_back(WorkRequest::send(a.handle(), {}).with_inline(payload).with_tag(number));
            } else {
                write_message(local.bytes().subspan(number * 64, length), number);
                burst.push_back(WorkRequest::send(a.handle(), local_sge(length, number * 64)).with_tag(number));
            }
        }
        sent += session.try_submit(burst).accepted;
        Completion some[16];
        const std::size_t n = reader.poll(some);
        for (std::size_t i = 0; i < n; ++i) {
            EXPECT_EQ(some[i].status, Status::success);
            expect_message(pool.message(some[i]), heard++);
            EXPECT_EQ(reader.release(some[i]), Refusal::none);
        }
        return heard == kMessages;
    });
    for (const Completion& completion : await(kMessages)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    EXPECT_GT(runtime.worker_counters(0).waits_for_credit.value(), 0u);
    EXPECT_EQ(rnrs(), before);
    WorkRequest too_long = WorkRequest::send(a.handle(), local_sge(kBuffer + 1)).with_tag(1);
    const std::array after{WorkRequest::send(a.handle(), {}).with_inline(std::span(payloads[0]).first(8)), too_long};
    const Submitted submitted = session.try_submit(after);
    EXPECT_EQ(submitted.accepted, 1u);
    EXPECT_EQ(submitted.refusal, Refusal::message_too_long);
    EXPECT_EQ(await_one().status, Status::success);
}

TEST_F(Credits, AreRefusedWhereThePeerHasNone) {
    QueuePairOptions options = shape();
    a = runtime.create_queue_pair(options);
    options.flow = FlowControl::credits;
    b = runtime.create_queue_pair(options);
    EXPECT_THROW(a.connect(b.info()), Error);
    EXPECT_THROW(b.connect(a.info()), Error);
    // The refusals have not changed b, which can still connect.
    QueuePair c = runtime.create_queue_pair(options);
    const QpInfo info = c.info();
    c.connect(b.info(), kNoRetries);
    b.connect(info, kNoRetries);
}

TEST_F(Credits, AreRefusedWhereTheyCannotBe) {
    const auto refused = [&](auto&& change) {
        QueuePairOptions options = shape(FlowControl::credits);
        change(options);
        EXPECT_THROW((void)runtime.create_queue_pair(options), Error);
    };
    refused([](QueuePairOptions& options) { options.type = QpType::uc; });
    refused([](QueuePairOptions& options) { options.type = QpType::ud; });
    refused([](QueuePairOptions& options) { options.recv_depth = 0; });
    refused([](QueuePairOptions& options) { options.flow = static_cast<FlowControl>(std::size(kFlowControls)); });
    refused([](QueuePairOptions& options) { options.flow = FlowControl{255}; });
}

TEST_F(Credits, WorkOverASharedReceiveQueue) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue(
        {.session = &reader, .depth = 8, .pool = &pool, .pool_share = 16, .credit_connections = 3});
    std::vector<QueuePair> from;
    std::vector<QueuePair> to;
    for (int i = 0; i < 3; ++i) {
        QueuePairOptions options = shape(FlowControl::credits);
        options.recv_depth = 4;
        a = runtime.create_queue_pair(options);
        options.shares[0].session = &reader;
        options.srq = &srq;
        b = runtime.create_queue_pair(options);
        connect_ends();
        from.push_back(std::move(a));
        to.push_back(std::move(b));
    }
    QueuePairOptions options = shape();
    options.shares[0].session = &reader;
    options.srq = &srq;
    EXPECT_THROW((void)runtime.create_queue_pair(options), Error)
        << "without credits it would take what others were granted";
    options.flow = FlowControl::credits;
    EXPECT_THROW((void)runtime.create_queue_pair(options), Error) << "a fourth";
    const std::uint64_t before = rnrs();
    // Each queue pair sends kEach messages. It has its own kSlots buffers, because there is no order between queue
    // pairs.
    constexpr std::uint64_t kEach = 300;
    constexpr std::size_t kSlots = 20;
    std::array<std::uint64_t, 3> sent{};
    std::array<std::uint64_t, 3> ended{};
    std::uint64_t heard = 0;
    std::uint64_t done = 0;
    std::map<QpHandle, std::uint64_t> next;
    std::vector<Completion> held;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (std::size_t turn = 0; (heard < 3 * kEach || done < 3 * kEach) && std::chrono::steady_clock::now() < deadline;
         ++turn) {
        const std::size_t pair = turn % 3;
        if (sent[pair] < kEach && sent[pair] - ended[pair] < kSlots) {
            const std::size_t at = (pair * kSlots + sent[pair] % kSlots) * 64;
            write_message(local.bytes().subspan(at, 32), sent[pair]);
            WorkRequest request = send(pair, 32);
            request.sge = local_sge(32, at);
            request.qp = from[pair].handle();
            sent[pair] += session.try_submit(request) == Refusal::none;
        }
        Completion some[8];
        const std::size_t completed = session.poll(some);
        for (std::size_t i = 0; i < completed; ++i) {
            ASSERT_EQ(some[i].status, Status::success);
            ++ended[some[i].tag];
        }
        done += completed;
        const std::size_t n = reader.poll(some);
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(some[i].status, Status::success);
            expect_message(pool.message(some[i]), next[some[i].qp]++);
            held.push_back(some[i]);
        }
        heard += n;
        if (held.size() >= 5) {
            const Submitted released = reader.release(held);
            held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(released.accepted));
        }
        if (n + completed == 0) {
            test::give_way();
        }
    }
    EXPECT_EQ(heard, 3 * kEach);
    EXPECT_EQ(done, 3 * kEach);
    EXPECT_EQ(rnrs(), before);
}

TEST_F(Credits, AreAgreedByAddressToo) {
    Listener listener = runtime.listen(listen_address());
    make_ends(FlowControl::credits);
    const std::vector<std::byte> word(kRequestPrivateDataMax - kPrivateDataFlow, std::byte{7});
    std::vector<std::byte> answer;
    std::thread caller(
        [&] { answer = a.connect(listener.address(), patient({.path = kNoRetries, .private_data = word})); });
    std::optional<ConnectionRequest> request = listener.next_request(kPatience);
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->flow(), FlowControl::credits);
    EXPECT_EQ(std::vector(request->private_data().begin(),
                          request->private_data().begin() + static_cast<std::ptrdiff_t>(word.size())),
              word);
    request->accept(b, patient({.path = kNoRetries, .private_data = {std::byte{9}}}));
    caller.join();
    ASSERT_GE(answer.size(), 1u);
    EXPECT_EQ(answer[0], std::byte{9});
    const std::uint64_t before = rnrs();
    stream(500, true);
    EXPECT_EQ(rnrs(), before);
    const std::vector<std::byte> longer(word.size() + 1);
    a.reset();
    EXPECT_THROW(a.connect(listener.address(), {.private_data = longer}), Error);
}

TEST_F(Credits, ByAddressAreRefusedWhereThePeerHasNone) {
    Listener listener = runtime.listen(listen_address());
    for (const bool caller_has : {true, false}) {
        QueuePairOptions options = shape();
        options.flow = caller_has ? FlowControl::credits : FlowControl::off;
        QueuePair caller = runtime.create_queue_pair(options);
        options.flow = caller_has ? FlowControl::off : FlowControl::credits;
        QueuePair callee = runtime.create_queue_pair(options);
        std::string said;
        std::thread calling([&] {
            try {
                caller.connect(listener.address(), patient());
            } catch (const Error& error) {
                said = error.what();
            }
        });
        std::optional<ConnectionRequest> request = listener.next_request(kPatience);
        EXPECT_TRUE(request.has_value());
        if (request) {
            EXPECT_EQ(request->flow(), caller_has ? FlowControl::credits : FlowControl::off);
            try {
                request->accept(callee);
                ADD_FAILURE() << "was accepted";
            } catch (const Error& error) {
                EXPECT_EQ(error.code().value(), EPROTOTYPE) << error.what();
            }
            request->reject();
        }
        calling.join();
        EXPECT_FALSE(said.empty());
    }
}

// A peer may announce any address for its control block, which the other end writes. Only the peer's own device can
// check the address.
TEST_F(Credits, ABlockThatIsNotThereEndsTheConnectionAndNothingElse) {
    make_ends(FlowControl::credits);
    std::mt19937_64 random(9);
    for (int round = 0; round < 40; ++round) {
        const QpInfo info_a = a.info();
        QpInfo info_b = b.info();
        const FlowBlock good = info_b.flow;
        info_b.flow.addr = round % 3 == 0 ? good.addr + 64 * (1 + random() % 1000) : random();
        info_b.flow.rkey = round % 2 == 0 ? good.rkey : static_cast<std::uint32_t>(random());
        if (round % 5 == 0) {
            info_b.flow.kind = static_cast<FlowControl>(2 + random() % 254);
            EXPECT_THROW(a.connect(info_b, kNoRetries), Error);
            continue;
        }
        a.connect(info_b, kNoRetries);
        b.connect(info_a, kNoRetries);
        submit({send(0, 8), send(1, 8), send(2, 8), send(3, 8)});
        const auto ended = await(4);
        ASSERT_EQ(ended.size(), 4u);
        for (std::uint64_t i = 0; i < 4; ++i) {
            EXPECT_EQ(ended[i].tag, i);
            EXPECT_FALSE(ended[i].ok());
        }
        EXPECT_EQ(session.cause(a.handle()), Status::rem_access_err);
        EXPECT_TRUE(a.reset());
        EXPECT_TRUE(b.reset());
        EXPECT_EQ(reader.release(await(reader, 1).at(0)), Refusal::none);  // releases the final completion
    }
    connect_ends();
    stream(100, false);
}

TEST_F(Credits, WhatOneEndSaysNobodyElseReads) {
    connect_with(FlowControl::credits);
    const FlowBlock block = b.info().flow;
    QueuePairOptions options = shape();
    options.remote_access = RemoteAccess::all();
    a = runtime.create_queue_pair(options);
    QueuePair other = runtime.create_queue_pair(options);
    const QpInfo info = a.info();
    a.connect(other.info());
    other.connect(info);
    WorkRequest read = rdma(Opcode::rdma_read, 1, 8);
    read.remote_addr = block.addr;
    read.rkey = block.rkey;
    submit(read);
    EXPECT_EQ(await_one().status, Status::rem_access_err);
}

TEST_F(Credits, WhatWaitsEndsWithItsQueuePair) {
    connect_with(FlowControl::credits);
    for (std::uint64_t i = 0; i < 40; ++i) {
        submit(send(i, 8, i % 4 == 3 ? std::uint8_t{kSignaled} : std::uint8_t{0}));
    }
    // The connection's share is 16 buffers, and the test releases none of them.
    std::vector<Completion> heard = await(reader, 16);
    EXPECT_TRUE(a.close());
    std::uint64_t flushed = 0;
    Completion some[64];
    const std::size_t n = session.poll(some);
    for (std::size_t i = 0; i < n; ++i) {
        flushed += some[i].status != Status::success;
    }
    EXPECT_GE(flushed, 24u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_TRUE(b.close());
}

TEST_F(Credits, APeerThatEndsFlushesWhatWaits) {
    connect_with(FlowControl::credits);
    for (std::uint64_t i = 0; i < 40; ++i) {
        submit(send(i, 8));
    }
    (void)await(reader, 16);
    EXPECT_TRUE(b.close());
    a.disconnect();
    EXPECT_EQ(await(40).size(), 40u);
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_F(Credits, BeginAgainAfterAReset) {
    connect_with(FlowControl::credits);
    for (int life = 0; life < 3; ++life) {
        stream(100, false);
        EXPECT_TRUE(a.reset());
        EXPECT_TRUE(b.reset());
        const Completion last = await(reader, 1).at(0);
        EXPECT_EQ(last.status, Status::qp_closed);
        EXPECT_EQ(reader.release(last), Refusal::none);
        connect_ends();
    }
}

}  // namespace
}  // namespace pollcore::testing
