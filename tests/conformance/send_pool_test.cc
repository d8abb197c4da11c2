// Send pools: buffers are claimed and committed, and come back with the completions.
#include <algorithm>
#include <cstring>
#include <string>

#include "fixture.hpp"
#include "give_way.hpp"

namespace pollcore::testing {
namespace {

class SendPools : public Conformance {
protected:
    static constexpr std::uint32_t kBuffers = 8;
    static constexpr std::uint32_t kBuffer = 256;

    SendPools()
        : reader(runtime.open_session({.pool_buffers = 64})),
          received(runtime.create_receive_pool({.session = &reader, .buffers = 64, .buffer_bytes = kBuffer})),
          pool(make_pool()) {
        QueuePairOptions receiver = shape(FlowControl::credits);
        receiver.shares[0].session = &reader;
        receiver.recv_depth = 16;
        receiver.pool = &received;
        a = runtime.create_queue_pair(shape(FlowControl::credits));
        b = runtime.create_queue_pair(receiver);
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }
    [[nodiscard]] SendPool make_pool() {
        return runtime.create_send_pool({.session = &session, .buffers = kBuffers, .buffer_bytes = kBuffer});
    }
    [[nodiscard]] static std::string text_of(std::size_t i) { return "message " + std::to_string(i); }
    /// Claims a buffer, writes the message into it and commits it.
    [[nodiscard]] Refusal say(std::size_t i, const WorkRequest& request) {
        const std::string text = text_of(i);
        SendClaim claim = pool.claim(static_cast<std::uint32_t>(text.size()));
        if (!claim.valid()) {
            return Refusal::send_queue_full;
        }
        std::memcpy(claim.payload().data(), text.data(), text.size());
        return pool.commit(claim, request);
    }
    [[nodiscard]] WorkRequest plain() const { return WorkRequest::send(a.handle(), {}).unsignaled(); }
    /// Reads the messages that have come, and compares each with text_of() of its number.
    void hear(std::size_t& heard) {
        Completion completion;
        while (reader.poll({&completion, 1}) != 0) {
            if (completion.ok()) {
                const std::span<const std::byte> message = received.message(completion);
                EXPECT_EQ(std::string(reinterpret_cast<const char*>(message.data()), message.size()), text_of(heard));
                ++heard;
            }
            EXPECT_EQ(reader.release(completion), Refusal::none);
        }
    }

    TestSession reader;
    ReceivePool received;
    SendPool pool;
};

TEST_F(SendPools, BuffersComeBackByThemselves) {
    constexpr std::size_t kMessages = 2000;
    std::size_t heard = 0;
    std::size_t said = 0;
    Completion completion;
    while (heard < kMessages) {
        while (said < kMessages && say(said, plain()) == Refusal::none) {
            ++said;
        }
        EXPECT_EQ(session.poll({&completion, 1}), 0u) << "a send that succeeds is not told";
        hear(heard);
        test::give_way();
    }
    until([&] { return session.poll({&completion, 1}) == 0 && pool.free() == kBuffers; });
    const SessionFigures figures = session.figures();
    EXPECT_EQ(figures.accepted, kMessages);
    EXPECT_EQ(figures.in_flight(), 0u);
}

// A short message may be copied from its buffer into the request. The buffer comes back as ever.
TEST_F(SendPools, MaySendInline) {
    std::size_t heard = 0;
    for (std::size_t i = 0; i < 20; ++i) {
        ASSERT_EQ(say(i, plain().with_flags(kInline)), Refusal::none);
        until([&] {
            Completion completion;
            EXPECT_EQ(session.poll({&completion, 1}), 0u);
            hear(heard);
            return heard == i + 1 && pool.free() == kBuffers;
        });
    }
    SendClaim claim = pool.claim(kBuffer);
    ASSERT_TRUE(claim.valid());
    EXPECT_EQ(pool.commit(claim, plain().with_flags(kInline)), Refusal::inline_too_long);
    EXPECT_TRUE(claim.valid());
}

TEST_F(SendPools, TellWhatTheProgramWantsToKnowWithItsOwnTag) {
    EXPECT_EQ(say(0, plain()), Refusal::none);
    EXPECT_EQ(say(1, WorkRequest::send(a.handle(), {}).with_tag(77)), Refusal::none);
    EXPECT_EQ(say(2, plain()), Refusal::none);
    const Completion told = await_one();
    EXPECT_EQ(told.tag, 77u);
    EXPECT_EQ(told.status, Status::success);
    until([&] {
        Completion completion;
        return session.poll({&completion, 1}) == 0 && pool.free() == kBuffers;
    });
}

// A program that polls until 0 has seen every completion, also if those of the pool stand before it in the ring.
TEST_F(SendPools, APollThatReturnsNothingLeavesNoCompletion) {
    constexpr std::size_t kOfPool = 4;
    const std::uint64_t before = runtime.worker_counters(0).delivered.value();
    for (std::size_t i = 0; i < kOfPool; ++i) {
        EXPECT_EQ(say(i, plain()), Refusal::none);
    }
    EXPECT_EQ(session.try_submit(WorkRequest::send(a.handle(), local_sge(16)).with_tag(5)), Refusal::none);
    // Each message has a completion at each end.
    until([&] { return runtime.worker_counters(0).delivered.value() >= before + 2 * (kOfPool + 1); });
    Completion completion;
    ASSERT_EQ(session.poll({&completion, 1}), 1u) << "it stands behind those of the pool";
    EXPECT_EQ(completion.tag, 5u);
}

TEST_F(SendPools, OtherRequestsOfTheSessionAreToldAsEver) {
    const Sge sge = local_sge(16);
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(say(i, plain()), Refusal::none);
        EXPECT_EQ(session.try_submit(WorkRequest::send(a.handle(), sge).with_tag(i)), Refusal::none);
    }
    for (std::uint64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(await_one().tag, i);
    }
    EXPECT_EQ(pool.free(), kBuffers) << "they stood before the others in the queue";
}

TEST_F(SendPools, TellEachFailureAndTakeTheBufferBack) {
    b.close();
    until([&] { return session.state(a.handle()) != QpState::closed; });
    std::size_t said = 0;
    while (said < 4 && say(said, plain().with_tag(100 + said)) == Refusal::none) {
        ++said;
    }
    a.close();
    for (std::size_t i = 0; i < said; ++i) {
        const Completion failed = await_one();
        EXPECT_FALSE(failed.ok());
        EXPECT_EQ(failed.tag, 100 + i);
    }
    EXPECT_EQ(pool.free(), kBuffers);
}

TEST_F(SendPools, AClaimThatIsNotCommittedGoesBack) {
    {
        std::vector<SendClaim> claims;
        for (std::uint32_t i = 0; i < kBuffers; ++i) {
            claims.push_back(pool.claim(kBuffer));
            ASSERT_TRUE(claims.back().valid());
            EXPECT_EQ(claims.back().payload().size(), kBuffer);
        }
        EXPECT_FALSE(pool.claim(1).valid()) << "no buffer is free";
        EXPECT_EQ(pool.free(), 0u);
        SendClaim moved = std::move(claims.front());
        EXPECT_FALSE(claims.front().valid());
        EXPECT_EQ(pool.commit(moved, WorkRequest::rdma_read(a.handle(), {}, remote.remote())), Refusal::bad_opcode);
        EXPECT_TRUE(moved.valid()) << "it can be committed again";
        EXPECT_EQ(pool.commit(moved, plain()), Refusal::none);
        EXPECT_FALSE(moved.valid());
        EXPECT_EQ(pool.commit(moved, plain()), Refusal::session_closed) << "it is gone";
    }
    EXPECT_FALSE(pool.claim(kBuffer + 1).valid()) << "longer than a buffer";
    until([&] {
        Completion completion;
        (void)session.poll({&completion, 1});
        return pool.free() == kBuffers;
    });
}

TEST_F(SendPools, MayEndBeforeTheirRequestsAndTheirSession) {
    std::size_t heard = 0;
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(say(i, plain()), Refusal::none);
    }
    pool = {};
    pool = make_pool();
    until([&] {
        Completion completion;
        (void)session.poll({&completion, 1});
        hear(heard);
        return heard == 3;
    });
    SendClaim claim = pool.claim(8);
    { const Session ends = std::move(static_cast<Session&>(session)); }
    EXPECT_EQ(pool.commit(claim, plain()), Refusal::session_closed);
    session = TestSession(runtime.open_session());
}

}  // namespace
}  // namespace pollcore::testing
