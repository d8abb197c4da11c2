// Receive pools: the worker keeps receive queues filled, and the application releases the buffers of the messages that
// it has read.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class ReceivePools : public Conformance {
protected:
    static constexpr std::uint32_t kBuffers = 64;
    static constexpr std::uint32_t kBuffer = 1000;
    // With these attributes a send waits for its receive for ever, and retries often.
    static constexpr PathAttributes kPatient{.rnr_retry = 7, .min_rnr_timer = 1};

    ReceivePools()
        : reader(runtime.open_session({.pool_buffers = kBuffers, .wide_completions = true})),
          pool(make_pool(kBuffers)) {}

    [[nodiscard]] ReceivePool make_pool(std::uint32_t buffers) {
        return runtime.create_receive_pool({.session = &reader, .buffers = buffers, .buffer_bytes = kBuffer});
    }
    [[nodiscard]] QueuePairOptions pooled(std::uint32_t depth = 16, std::uint32_t share = 0) {
        QueuePairOptions options = shape();
        options.shares[0].session = &reader;
        options.recv_depth = depth;
        options.pool = &pool;
        options.pool_share = share;
        return options;
    }
    void connect_to(const QueuePairOptions& receiver, const PathAttributes& path = kPatient) {
        a = runtime.create_queue_pair(shape());
        b = runtime.create_queue_pair(receiver);
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b, path);
        b.connect(info_a, path);
    }
    /// Sends `length` bytes of `local` from offset `at`. The bytes stay in `local`, so that the test can compare them.
    void say(std::uint64_t tag, std::uint32_t length, std::size_t at = 0) {
        WorkRequest request = send(tag, length);
        request.sge = local_sge(length, at);
        submit(request);
    }
    std::vector<WideCompletion> hear(std::size_t n) { return await_wide(reader, n); }
    WideCompletion hear_one() {
        const auto heard = hear(1);
        return heard.empty() ? WideCompletion{} : heard.front();
    }
    void expect_message(const Completion& completion, std::uint32_t length, std::size_t at = 0) {
        EXPECT_EQ(completion.status, Status::success);
        EXPECT_TRUE(completion.pooled());
        const std::span<const std::byte> message = pool.message(completion);
        ASSERT_EQ(message.size(), length);
        EXPECT_EQ(std::memcmp(message.data(), local.data() + at, length), 0);
    }
    void release(const Completion& completion) {
        while (reader.release(completion) != Refusal::none) {
            test::give_way();
        }
    }
    void await_held(std::uint64_t n) {
        until([&] { return pool.counters().held.value() == n; });
    }

    TestSession reader;
    ReceivePool pool;
};

TEST_F(ReceivePools, PutAPayloadBehindAHeaderOnAPage) {
    constexpr std::uint32_t kHeader = 48;
    constexpr std::uint32_t kPayload = 900;
    pool.close();
    pool = runtime.create_receive_pool({.session = &reader,
                                        .buffers = 16,
                                        .buffer_bytes = kHeader + kPayload,
                                        .first_byte = kPoolPage - kHeader,
                                        .stride = 2 * kPoolPage});
    connect_to(pooled(8));
    for (std::uint64_t tag = 0; tag < 20; ++tag) {  // every buffer is used more than once
        say(tag, kHeader + kPayload, tag);
        const WideCompletion heard = hear_one();
        expect_message(heard, kHeader + kPayload, tag);
        const std::byte* payload = pool.message(heard).data() + kHeader;
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(payload) % kPoolPage, 0u);
        EXPECT_EQ(pool.buffer(1).data() - pool.buffer(0).data(), 2 * kPoolPage);
        EXPECT_EQ(reader.release(heard), Refusal::none);
        EXPECT_EQ(await_one().status, Status::success);
    }
}

TEST_F(ReceivePools, HaveNoCountsAfterTheirEnd) {
    connect_to(pooled());
    say(0, 64, 0);
    const WideCompletion heard = hear_one();
    EXPECT_EQ(pool.counters().delivered.value(), 1u);
    EXPECT_EQ(reader.release(heard), Refusal::none);
    b.close();
    pool.close();
    EXPECT_EQ(pool.counters().delivered.value(), 0u);
    EXPECT_EQ(pool.counters().held.value(), 0u);
    EXPECT_EQ(ReceivePool().counters().delivered.value(), 0u);
    EXPECT_EQ(await_one().status, Status::success);
}

TEST_F(ReceivePools, RefuseBuffersThatShareACacheLineOrAreFarAway) {
    const auto refused = [&](std::uint32_t first_byte, std::uint32_t stride) {
        try {
            (void)runtime.create_receive_pool(
                {.session = &reader, .buffers = 2, .buffer_bytes = 100, .first_byte = first_byte, .stride = stride});
            return false;
        } catch (const Error& error) {
            return error.code() == std::errc::invalid_argument;
        }
    };
    EXPECT_TRUE(refused(0, 64)) << "the buffers overlap";
    EXPECT_TRUE(refused(0, 130)) << "no multiple of a cache line";
    EXPECT_TRUE(refused(32, 128)) << "the end of a buffer is in the first line of the next";
    EXPECT_TRUE(refused(kPoolFirstByteMax + 1, 0));
    EXPECT_TRUE(refused(0, kPoolStrideMax + 64));
    pool.close();
    EXPECT_FALSE(refused(32, 192));
}

TEST_F(ReceivePools, KeepAQueuePairReceivingWithoutASingleReceiveOfTheApplication) {
    connect_to(pooled());
    std::mt19937 random(3);
    for (std::uint64_t i = 0; i < 300; ++i) {
        const auto length = static_cast<std::uint32_t>(random() % (kBuffer + 1));
        const std::size_t at = random() % 1000;
        say(i, length, at);
        const WideCompletion heard = hear_one();
        expect_message(heard, length, at);
        EXPECT_EQ(heard.qp, b.handle());
        release(heard);
        EXPECT_EQ(await_one().tag, i);
    }
    EXPECT_EQ(reader.figures().accepted, 0u);
    await_held(0);
    EXPECT_EQ(pool.counters().delivered.value(), 300u);
    Exercised::get().note("flow control", "receive pools");
}

TEST_F(ReceivePools, DeliverInOrderWhateverTheOrderOfReleases) {
    connect_to(pooled(16, 48));
    std::mt19937 random(4);
    std::vector<WideCompletion> held;
    std::uint64_t sent = 0;
    std::uint64_t heard = 0;
    std::size_t done = 0;
    while (heard < 2000) {
        // Both counts limit the number of messages on their way. The sender's completions may come long after the
        // messages have arrived, because a worker sleeps or an acknowledgement is late.
        if (sent < 2000 && sent - std::min<std::uint64_t>(heard, done) < 40) {
            std::memcpy(local.data() + sent % 64 * 8, &sent, sizeof(sent));
            say(sent, 8, sent % 64 * 8);
            ++sent;
        }
        WideCompletion some[8];
        const std::size_t n = reader.poll(some);
        for (std::size_t i = 0; i < n; ++i) {
            std::uint64_t number = 0;
            ASSERT_EQ(pool.message(some[i]).size(), sizeof(number));
            std::memcpy(&number, pool.message(some[i]).data(), sizeof(number));
            ASSERT_EQ(number, heard);
            ++heard;
            held.push_back(some[i]);
        }
        while (held.size() > random() % 40) {
            std::swap(held[random() % held.size()], held.back());
            release(held.back());
            held.pop_back();
        }
        Completion ended[8];
        done += session.poll(ended);
        if (n == 0) {
            test::give_way();
        }
    }
    await(2000 - done);
    EXPECT_EQ(pool.counters().bad_releases.value(), 0u);
}

TEST_F(ReceivePools, FillASharedReceiveQueue) {
    SharedReceiveQueue srq =
        runtime.create_shared_receive_queue({.session = &reader, .depth = 16, .pool = &pool, .pool_share = 32});
    std::vector<QueuePair> from;
    std::vector<QueuePair> to;
    for (int i = 0; i < 3; ++i) {
        QueuePairOptions options = shape();
        options.shares[0].session = &reader;
        options.srq = &srq;
        connect_to(options);
        from.push_back(std::move(a));
        to.push_back(std::move(b));
    }
    for (std::uint64_t i = 0; i < 150; ++i) {
        WorkRequest request = send(i, 100);
        request.sge = local_sge(100, i);
        request.qp = from[i % 3].handle();
        submit(request);
        const WideCompletion heard = hear_one();
        expect_message(heard, 100, i);
        EXPECT_EQ(heard.qp, to[i % 3].handle());
        EXPECT_EQ(heard.srq, srq.handle());
        release(heard);
        EXPECT_EQ(await_one().status, Status::success);
    }
    EXPECT_EQ(reader.try_submit({.srq = srq.handle(), .opcode = Opcode::srq_recv}), Refusal::not_receiver);
    EXPECT_THROW(pool.close(), Error);
    from.clear();
    to.clear();
    srq.close();
    await_held(0);
    EXPECT_EQ(pool.counters().posted.value(), 0u);
    pool.close();
}

TEST_F(ReceivePools, TakeDatagrams) {
    QueuePairOptions options = shape();
    options.type = QpType::ud;
    options.qkey = 0x1234;
    a = runtime.create_queue_pair(options);
    QueuePairOptions receiver = pooled();
    receiver.type = QpType::ud;
    receiver.qkey = 0x1234;
    b = runtime.create_queue_pair(receiver);
    AddressHandle to_b = runtime.create_address_handle(b.info());
    // A datagram that finds no receive is lost, so wait until receives are posted.
    until([&] { return pool.counters().posted.value() != 0; });
    for (std::uint64_t i = 0; i < 40; ++i) {
        WorkRequest request = send(i, 200);
        request.sge = local_sge(200, i);
        request.ud = {to_b.handle(), b.info().qp_num};
        request.remote_qkey = 0x1234;
        submit(request);
        const WideCompletion heard = hear_one();
        expect_message(heard, 200, i);
        EXPECT_NE(heard.flags & kDatagram, 0);
        EXPECT_EQ(heard.src_qp, a.qp_num());
        release(heard);
        EXPECT_EQ(await_one().status, Status::success);
    }
    options.shares[0].session = &session;
    options.pool = &pool;
    EXPECT_THROW((void)runtime.create_queue_pair(options), Error) << "its session has no wide completions";
}

TEST_F(ReceivePools, ForgottenBuffersStopTheirQueuePairAndNoOther) {
    QueuePairOptions small = pooled(4, 8);
    connect_to(small);
    QueuePair from = std::move(a);
    QueuePair to = std::move(b);
    connect_to(small);
    // The queue pair's share of the pool is 8 buffers. The remaining messages wait until the test releases buffers.
    for (std::uint64_t i = 0; i < 20; ++i) {
        WorkRequest request = send(1000 + i, 8);
        request.qp = from.handle();
        submit(request);
    }
    const auto forgotten = hear(8);
    for (std::uint64_t i = 0; i < 100; ++i) {
        say(i, 64, i);
        const WideCompletion heard = hear_one();
        ASSERT_EQ(heard.qp, b.handle());
        expect_message(heard, 64, i);
        release(heard);
        EXPECT_EQ(await_one().status, Status::success);  // the completion of a send on either queue pair
    }
    EXPECT_GE(pool.counters().ran_dry.value(), 1u);
    await_held(8);
    for (const HeldBuffer& buffer : pool.held()) {
        EXPECT_EQ(buffer.qp, to.handle());
        EXPECT_GE(buffer.later, 100u);
    }
    // The test releases the forgotten completions after all, and then the other messages arrive.
    std::size_t heard = 0;
    for (std::vector<WideCompletion> held = forgotten; heard < 12;) {
        for (const WideCompletion& completion : held) {
            release(completion);
        }
        held = hear(1);
        heard += held.size();
        if (held.empty()) {
            break;
        }
    }
    EXPECT_EQ(heard, 12u);
    EXPECT_EQ(await(20).size(), 20u);
}

TEST_F(ReceivePools, TellTheEndOfAQueuePairOnce) {
    connect_to(pooled());
    say(1, 8);
    expect_message(hear_one(), 8);
    a.disconnect();
    b.disconnect();
    const WideCompletion last = hear_one();
    EXPECT_EQ(last.status, Status::wr_flush_err);
    EXPECT_TRUE(last.pooled());
    EXPECT_TRUE(last.from_recv_queue());
    EXPECT_EQ(last.qp, b.handle());
    EXPECT_TRUE(pool.message(last).empty());
    release(last);
    EXPECT_TRUE(b.close());
    WideCompletion more;
    EXPECT_EQ(reader.poll({&more, 1}), 0u);
    EXPECT_EQ(pool.counters().posted.value(), 0u);
    EXPECT_EQ(pool.counters().orphaned.value(), 1u);
}

TEST_F(ReceivePools, AMessageThatIsTooLongIsTheEnd) {
    connect_to(pooled());
    say(1, kBuffer + 1);
    const WideCompletion last = hear_one();
    EXPECT_EQ(last.status, expected(Status::loc_len_err, Status::loc_qp_op_err));
    EXPECT_TRUE(last.pooled());
    EXPECT_EQ(await_one().status, expected(Status::rem_inv_req_err, Status::rem_op_err));
    EXPECT_EQ(reader.state(b.handle()), QpState::error);
}

TEST_F(ReceivePools, ReceiveAgainAfterAReset) {
    connect_to(pooled(8, 16));
    for (int life = 0; life < 5; ++life) {
        for (std::uint64_t i = 0; i < 20; ++i) {
            say(i, 32, i);
            const WideCompletion heard = hear_one();
            expect_message(heard, 32, i);
            EXPECT_EQ(heard.qp, b.handle());
            release(heard);
            EXPECT_EQ(await_one().status, Status::success);
        }
        EXPECT_TRUE(b.reset());
        EXPECT_TRUE(a.reset());
        const WideCompletion last = hear_one();
        EXPECT_EQ(last.status, Status::qp_closed);
        release(last);
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b, kPatient);
        b.connect(info_a, kPatient);
    }
}

TEST_F(ReceivePools, OutliveTheirSessionForWhatWasNotPolled) {
    connect_to(pooled());
    for (std::uint64_t i = 0; i < 5; ++i) {
        say(i, 16, i);
    }
    EXPECT_EQ(await(5).size(), 5u);
    reader.close();
    std::size_t messages = 0;
    WideCompletion one;
    while (reader.poll({&one, 1}) == 1) {
        if (one.ok()) {
            expect_message(one, 16, messages++);
        }
    }
    EXPECT_EQ(messages, 5u);
    EXPECT_EQ(reader.release(one), Refusal::session_closed);
    EXPECT_THROW((void)make_pool(1), Error);
    pool.close();
}

// Messages of the closed pool still occupy the completion ring. Until they are polled, the ring has no room for a new
// pool.
TEST_F(ReceivePools, KeepTheirPlaceInTheRingUntilTheirMessagesArePolled) {
    for (int round = 0; round < 3; ++round) {
        connect_to(pooled(16, 32));
        for (std::uint64_t i = 0; i < 10; ++i) {
            say(i, 16, i);
        }
        EXPECT_EQ(await(10).size(), 10u);
        b.close();
        a.close();
        pool.close();
        EXPECT_THROW((void)make_pool(kBuffers), Error);
        std::vector<WideCompletion> left = hear(11);  // 10 messages and the final completion
        reader.close();                               // tells the worker what was polled, as any request would
        reader = runtime.open_session({.pool_buffers = kBuffers, .wide_completions = true});
        pool = make_pool(kBuffers);
    }
    // A new session is not needed: any request tells the worker what was polled.
    connect_to(pooled(16, 32));
    say(1, 16);
    EXPECT_EQ(await(1).size(), 1u);
    b.close();
    pool.close();
    EXPECT_THROW((void)make_pool(kBuffers), Error);
    for (const WideCompletion& completion : hear(2)) {
        release(completion);  // its pool is closed, so this only tells the worker what was polled
    }
    pool = make_pool(kBuffers);
}

TEST_F(ReceivePools, OutliveTheRuntime) {
    connect_to(pooled());
    say(1, 16);
    EXPECT_EQ(await(1).size(), 1u);
    runtime.stop();
    WideCompletion one;
    ASSERT_EQ(reader.poll({&one, 1}), 1u);
    expect_message(one, 16);
    pool.close();
}

TEST_F(ReceivePools, SayWhatTheyHaveNoRoomFor) {
    const auto refuses = [](int error, std::string_view part, auto&& call) {
        try {
            (void)call();
            ADD_FAILURE() << "went well, and not: " << part;
        } catch (const Error& thrown) {
            EXPECT_EQ(thrown.code().value(), error) << thrown.what();
            EXPECT_NE(std::string_view(thrown.what()).find(part), std::string_view::npos) << thrown.what();
        }
    };
    refuses(ENOSPC, "it has room for 64", [&] { return make_pool(1); });
    refuses(EINVAL, "buffers = 0", [&] { return make_pool(0); });
    refuses(EINVAL, "buffer_bytes = 0",
            [&] { return runtime.create_receive_pool({.session = &reader, .buffer_bytes = 0}); });
    refuses(EINVAL, "needs an open session", [&] { return runtime.create_receive_pool({}); });
    refuses(EINVAL, "0 receives posted", [&] { return runtime.create_queue_pair(pooled(0)); });
    refuses(EINVAL, "8 receives posted of 7", [&] { return runtime.create_queue_pair(pooled(8, 7)); });
    refuses(ENOSPC, "The pool has 64, of which 0", [&] { return runtime.create_queue_pair(pooled(33)); });
    refuses(EINVAL, "belongs to session", [&] {
        QueuePairOptions options = pooled();
        options.shares[0].session = &session;
        return runtime.create_queue_pair(options);
    });
    refuses(EINVAL, "another protection domain", [&] {
        const ProtectionDomain other = runtime.create_protection_domain();
        QueuePairOptions options = pooled();
        options.pd = &other;
        return runtime.create_queue_pair(options);
    });
    refuses(EINVAL, "not by that of a queue pair", [&] {
        SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &reader});
        QueuePairOptions options = pooled();
        options.srq = &srq;
        return runtime.create_queue_pair(options);
    });
    b = runtime.create_queue_pair(pooled(16, 60));
    refuses(ENOSPC, "of which 60 are the shares of others", [&] { return runtime.create_queue_pair(pooled(4, 8)); });
    refuses(EBUSY, "used by 1 queue pairs", [&] {
        pool.close();
        return 0;
    });
    EXPECT_EQ(reader.try_submit({.qp = b.handle(), .opcode = Opcode::recv}), Refusal::not_receiver);
    b.close();
    b = runtime.create_queue_pair(pooled(16, 60));
    b.close();
    pool.close();
    refuses(EINVAL, "is not open: closed", [&] { return runtime.create_queue_pair(pooled()); });
    for (const WideCompletion& end : hear(2)) {  // one final completion for each of the two queue pairs
        EXPECT_EQ(end.status, Status::qp_closed);
        release(end);
    }
    pool = make_pool(kBuffers);
}

}  // namespace
}  // namespace pollcore::testing
