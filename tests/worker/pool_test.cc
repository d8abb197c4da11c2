// Receive pools at a worker that is stepped by hand: which buffers are posted and when, who holds each buffer, and
// where the buffers go when queue pairs, pools or sessions end.
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class WorkerPoolTest : public SenderReceiverFixture {
protected:
    static constexpr std::uint32_t kBytes = 100;

    static SteppedWorld::Options options(std::uint32_t pool_buffers) {
        SteppedWorld::Options options;
        options.pool_buffers = pool_buffers;
        return options;
    }
    void make(std::uint32_t buffers, SteppedWorld::PoolPart part = {}, std::size_t pairs = 1) {
        make(options(buffers), buffers, part, pairs);
    }
    void make(SteppedWorld::Options of_world, std::uint32_t buffers, SteppedWorld::PoolPart part, std::size_t pairs) {
        make_world(std::move(of_world));
        pool = &world->add_pool(buffers, kBytes, kReceiver);
        part.pool = pool;
        for (std::size_t i = 0; i < pairs; ++i) {
            add_pair({.shares = {{kSender, 64, 0}}}, {.shares = {{kReceiver, 8, 0}}, .pool = part}, {.rnr_retry = 0});
        }
        world->step(4);
    }
    /// Sends a message that begins with `word`.
    void send_word(std::uint64_t word, RequestShape shape = {.flags = 0}) {
        shape.from = word % 64 * 8;
        std::memcpy(source->data(shape.from), &word, sizeof(word));
        submit(send(word, shape));
    }
    std::vector<Completion> received(std::size_t n) { return world->await(n, kReceiver); }
    std::uint64_t word(const Completion& completion) {
        std::uint64_t value = 0;
        std::memcpy(&value, pool->buffer(completion.buffer()), sizeof(value));
        return value;
    }
    void release(const Completion& completion) {
        ASSERT_EQ(world->session(kReceiver).release(completion), Refusal::none);
    }
    [[nodiscard]] const ReceivePoolCounters& counters() const { return pool->counters(); }
    // Checks that each buffer is either free, posted or held.
    void expect_whole() {
        EXPECT_EQ(pool->buffers->free() + counters().posted.value() + counters().held.value(), pool->buffers->size());
        EXPECT_EQ(pool->buffers->held().size(), counters().held.value());
    }

    SteppedWorld::Pool* pool = nullptr;
};

TEST_F(WorkerPoolTest, AMessageThatWasTakenMakesNoRoomForRequestsBeforeItsSlotIsGivenBack) {
    SteppedWorld::Options of_world = options(32);
    of_world.completion_slots = 16;
    make(std::move(of_world), 32, {.depth = 8, .share = 8}, 3);
    send_word(1);
    world->step(10);
    for (std::size_t i = 0; i < 16; ++i) {
        submit(write(i % 2, {.qp = to[i % 2]}), kReceiver);
    }
    ASSERT_EQ(world->poll(kReceiver).size(), 1u) << "the message; nothing else has been stepped";
    const std::array<WorkRequest, 2> more{write(2, {.qp = to[2]}), write(2, {.qp = to[2]})};
    const Submitted submitted = world->session(kReceiver).try_submit(more);
    EXPECT_EQ(submitted.accepted, 0u);
    EXPECT_EQ(submitted.refusal, Refusal::completion_ring_full);
    EXPECT_EQ(received(16).size(), 16u);
    EXPECT_EQ(world->worker.counters().broken_sessions.value(), 0u);
}

TEST_F(WorkerPoolTest, ReceivesArePostedWithoutTheApplicationByOneDoorbell) {
    make(32, {.depth = 16, .share = 32});
    EXPECT_EQ(world->worker.counters().receives.value(), 16u);
    EXPECT_EQ(world->worker.counters().receive_doorbells.value(), 1u);
    EXPECT_EQ(counters().posted.value(), 16u);
    EXPECT_EQ(try_submit(recv(1)), Refusal::not_receiver);
    EXPECT_EQ(world->session(kReceiver).figures().in_flight(), 0u);
    expect_whole();
}

TEST_F(WorkerPoolTest, ACompletionNamesTheBufferWithTheMessage) {
    make(32);
    for (std::uint64_t i = 0; i < 200; ++i) {
        send_word(i);
        const auto completions = received(1);
        ASSERT_EQ(completions.size(), 1u);
        const Completion& completion = completions[0];
        EXPECT_TRUE(completion.ok());
        EXPECT_TRUE(completion.pooled());
        EXPECT_TRUE(completion.from_recv_queue());
        EXPECT_EQ(completion.pool(), pool->handle());
        EXPECT_EQ(completion.qp, to[0]->handle());
        EXPECT_EQ(completion.opcode, CompletionOpcode::recv);
        EXPECT_EQ(completion.byte_len, 8u);
        EXPECT_EQ(word(completion), i);
        EXPECT_EQ(counters().held.value(), 1u);
        release(completion);
    }
    world->step(4);
    EXPECT_EQ(counters().delivered.value(), 200u);
    EXPECT_EQ(counters().released.value(), 200u);
    const SessionFigures figures = world->session(kReceiver).figures();
    EXPECT_EQ(figures.accepted, 0u);
    EXPECT_EQ(figures.completed, 0u);
    expect_whole();
}

TEST_F(WorkerPoolTest, ReceivesAreRepostedAtTheLowWaterMarkSeveralWithOneDoorbell) {
    make(32, {.depth = 16, .share = 32});
    const Counter& doorbells = world->worker.counters().receive_doorbells;
    for (std::uint64_t i = 0; i < 3; ++i) {
        send_word(i);
    }
    const auto three = received(3);
    ASSERT_EQ(three.size(), 3u);
    release(three[0]);
    world->step(2);
    EXPECT_EQ(counters().posted.value(), 13u) << "a buffer that comes back is no reason by itself";
    EXPECT_EQ(counters().low_water.value(), 0u);
    EXPECT_EQ(doorbells.value(), 1u);
    send_word(3);
    ASSERT_EQ(received(1).size(), 1u);
    EXPECT_EQ(counters().posted.value(), 16u);
    EXPECT_EQ(counters().low_water.value(), 1u);
    EXPECT_EQ(doorbells.value(), 2u);
    EXPECT_EQ(counters().refills.value(), 2u);
    EXPECT_EQ(counters().ran_dry.value(), 0u);
    expect_whole();
}

TEST_F(WorkerPoolTest, ManyBuffersComeBackInFewSlots) {
    make(options(64), 64, {.depth = 32, .share = 64}, 1);
    for (std::uint64_t i = 0; i < 30; ++i) {
        send_word(i);
    }
    const auto completions = received(30);
    ASSERT_EQ(completions.size(), 30u);
    const Submitted submitted = world->session(kReceiver).release(completions);
    EXPECT_EQ(submitted.accepted, 30u);
    EXPECT_EQ(submitted.refusal, Refusal::none);
    world->step(2);
    EXPECT_EQ(counters().released.value(), 30u);
    EXPECT_EQ(counters().held.value(), 0u);
    expect_whole();
}

TEST_F(WorkerPoolTest, ReleasingWithoutRoomInTheRingSaysHowFarItCame) {
    SteppedWorld::Options few = options(64);
    few.submission_slots = 2;
    make(std::move(few), 64, {.depth = 40, .share = 64}, 1);
    std::vector<Completion> completions;
    for (std::uint64_t i = 0; i < 30; ++i) {
        send_word(i);
        for (const Completion& completion : received(1)) {
            completions.push_back(completion);
        }
    }
    ASSERT_EQ(completions.size(), 30u);
    const Submitted first = world->session(kReceiver).release(completions);
    EXPECT_EQ(first.accepted, 2 * ReleaseRequest::kBuffers);
    EXPECT_EQ(first.refusal, Refusal::submission_ring_full);
    world->step();
    const Submitted rest = world->session(kReceiver).release(std::span(completions).subspan(first.accepted));
    EXPECT_EQ(rest.accepted, 30 - 2 * ReleaseRequest::kBuffers);
    EXPECT_EQ(rest.refusal, Refusal::none);
    world->step();
    EXPECT_EQ(counters().released.value(), 30u);
}

TEST_F(WorkerPoolTest, OtherCompletionsArePassedOver) {
    make(32);
    send_word(1, {.flags = kSignaled});
    const auto sent = world->await(1, kSender);
    ASSERT_EQ(sent.size(), 1u);
    auto mixed = received(1);
    mixed.insert(mixed.begin(), sent[0]);
    mixed.push_back(sent[0]);
    EXPECT_EQ(world->session(kReceiver).release(mixed).accepted, 3u);
    world->step(2);
    EXPECT_EQ(counters().released.value(), 1u);
    EXPECT_EQ(counters().bad_releases.value(), 0u);
}

TEST_F(WorkerPoolTest, WhatTheApplicationDoesNotHaveItCannotRelease) {
    make(32);
    send_word(1);
    const auto completions = received(1);
    ASSERT_EQ(completions.size(), 1u);
    release(completions[0]);
    release(completions[0]);  // releases the buffer a second time
    Completion beyond = completions[0];
    beyond.tag = pool_tag(pool->handle(), 32);
    release(beyond);
    Completion posted = completions[0];
    posted.tag = pool_tag(pool->handle(), (completions[0].buffer() + 1) % 32);
    release(posted);
    Completion of_none = completions[0];
    of_none.tag = pool_tag({.index = 7, .generation = 1}, 0);
    release(of_none);
    Completion far = completions[0];
    far.tag = pool_tag({.index = 0xffff, .generation = 1}, 0);
    release(far);
    world->step(2);
    EXPECT_EQ(counters().released.value(), 1u);
    EXPECT_EQ(counters().bad_releases.value(), 3u);
    expect_whole();
    for (std::uint64_t i = 0; i < 100; ++i) {
        send_word(i);
        const auto more = received(1);
        ASSERT_EQ(more.size(), 1u);
        EXPECT_EQ(word(more[0]), i);
        release(more[0]);
    }
}

TEST_F(WorkerPoolTest, AnotherSessionCannotReleaseThem) {
    make(32);
    send_word(1);
    const auto completions = received(1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(world->session(kSender).release(completions[0]), Refusal::none);
    world->step(2);
    EXPECT_EQ(counters().held.value(), 1u);
    expect_whole();
}

// A hostile client may write any count into its ring.
TEST_F(WorkerPoolTest, ASlotThatClaimsMoreBuffersThanItHoldsIsReadToItsEnd) {
    make(32);
    send_word(1);
    const auto completions = received(1);
    ReleaseRequest request{.count = 0xffffffff, .pool = pool->handle()};
    request.buffers.fill(completions[0].buffer());
    ASSERT_TRUE(world->raw(kReceiver).try_push(std::bit_cast<WorkRequest>(request)));
    world->step(2);
    EXPECT_EQ(counters().released.value(), 1u);
    EXPECT_EQ(counters().bad_releases.value(), ReleaseRequest::kBuffers - 1);
    expect_whole();
}

TEST_F(WorkerPoolTest, ForgottenBuffersStopOneQueuePairAndNoOther) {
    make(options(64), 64, {.depth = 8, .share = 16}, 2);
    for (std::uint64_t i = 0; i < 16; ++i) {
        send_word(i);
        ASSERT_EQ(received(1).size(), 1u);
    }
    EXPECT_EQ(to[0]->end->recvs().taker().posted(), 0u);
    EXPECT_EQ(to[0]->end->recvs().taker().held(), 16u);
    EXPECT_EQ(counters().ran_dry.value(), 1u);
    const std::uint64_t delivered = counters().delivered.value();
    for (std::uint64_t i = 0; i < 100; ++i) {
        send_word(i, {.qp = from[1], .flags = 0});
        const auto completions = received(1);
        ASSERT_EQ(completions.size(), 1u);
        release(completions[0]);
    }
    world->step(2);
    // held() lists the held buffers. For each buffer it says how many messages have been delivered since.
    const auto held = pool->buffers->held();
    ASSERT_EQ(held.size(), 16u);
    std::set<std::uint32_t> ages;
    for (const HeldBuffer& buffer : held) {
        EXPECT_EQ(buffer.qp, to[0]->handle());
        ages.insert(buffer.later);
    }
    EXPECT_EQ(ages.size(), 16u);
    EXPECT_EQ(*ages.begin(), counters().delivered.value() - delivered);
    // A buffer that the application releases late is posted again.
    Completion remembered;
    remembered.flags = kPooled;
    remembered.tag = pool_tag(pool->handle(), held[3].buffer);
    release(remembered);
    world->step(2);
    EXPECT_EQ(to[0]->end->recvs().taker().posted(), 1u);
    send_word(99);
    EXPECT_EQ(received(1).size(), 1u);
    expect_whole();
}

TEST_F(WorkerPoolTest, TheEndOfAQueuePairIsToldOnceWithItsCause) {
    make(32);
    send_word(1);
    ASSERT_EQ(received(1).size(), 1u);
    world->to_error(*to[0]);
    const auto last = received(1);
    ASSERT_EQ(last.size(), 1u);
    EXPECT_EQ(last[0].status, Status::wr_flush_err);
    EXPECT_TRUE(last[0].pooled());
    EXPECT_TRUE(last[0].from_recv_queue());
    EXPECT_NE(last[0].flags & kByRuntime, 0);
    EXPECT_EQ(last[0].qp, to[0]->handle());
    EXPECT_EQ(counters().posted.value(), 0u);
    EXPECT_EQ(counters().held.value(), 2u);
    EXPECT_EQ(counters().delivered.value(), 1u);
    release(last[0]);
    world->step(10);
    EXPECT_TRUE(world->poll(kReceiver).empty());
    EXPECT_TRUE(world->close(*to[0]));
    EXPECT_TRUE(world->poll(kReceiver).empty());
    expect_whole();
}

TEST_F(WorkerPoolTest, AMessageThatIsTooLongEndsItWithThatCause) {
    make(32);
    send_word(1, {.flags = kSignaled, .length = kBytes + 1});
    const auto last = received(1);
    ASSERT_EQ(last.size(), 1u);
    EXPECT_EQ(last[0].status, Status::loc_len_err);
    EXPECT_TRUE(last[0].pooled());
    const auto sent = world->await(1, kSender);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].status, Status::rem_inv_req_err);
    world->step(20);
    EXPECT_TRUE(world->poll(kReceiver).empty());
    EXPECT_EQ(counters().posted.value(), 0u);
    expect_whole();
}

TEST_F(WorkerPoolTest, TheEndIsToldOnceABufferIsThereForIt) {
    make(32, {.depth = 4, .share = 4});
    for (std::uint64_t i = 0; i < 4; ++i) {
        send_word(i);
    }
    const auto completions = received(4);
    ASSERT_EQ(completions.size(), 4u);
    world->to_error(*to[0]);
    world->step(20);
    EXPECT_TRUE(world->poll(kReceiver).empty());
    release(completions[2]);
    const auto last = received(1);
    ASSERT_EQ(last.size(), 1u);
    EXPECT_EQ(last[0].status, Status::wr_flush_err);
    EXPECT_EQ(last[0].buffer(), completions[2].buffer());
    expect_whole();
}

TEST_F(WorkerPoolTest, AResetQueuePairIsFilledAgain) {
    make(32, {.depth = 8, .share = 16});
    send_word(1);
    const auto before = received(1);
    ASSERT_EQ(before.size(), 1u);
    ASSERT_TRUE(world->reset(*to[0]));
    const auto last = received(1);
    ASSERT_EQ(last.size(), 1u);
    EXPECT_EQ(last[0].status, Status::wr_flush_err);
    ASSERT_TRUE(world->reset(*from[0]));
    world->step(4);
    EXPECT_EQ(counters().posted.value(), 8u);
    connect(*from[0], *to[0], {.rnr_retry = 0});
    release(before[0]);
    release(last[0]);
    for (std::uint64_t i = 0; i < 40; ++i) {
        send_word(i);
        const auto completions = received(1);
        ASSERT_EQ(completions.size(), 1u);
        EXPECT_EQ(word(completions[0]), i);
        EXPECT_EQ(completions[0].qp, to[0]->handle());
        release(completions[0]);
    }
    // The end of the second life is reported just like the end of the first.
    world->to_error(*to[0]);
    EXPECT_EQ(received(1).size(), 1u);
    expect_whole();
}

TEST_F(WorkerPoolTest, BuffersOfAClosedQueuePairAreCountedUntilTheyComeBack) {
    make(32, {.depth = 8, .share = 16});
    for (std::uint64_t i = 0; i < 5; ++i) {
        send_word(i);
    }
    auto completions = received(5);
    ASSERT_EQ(completions.size(), 5u);
    EXPECT_TRUE(world->close(*to[0]));
    for (const Completion& completion : received(1)) {
        completions.push_back(completion);
    }
    ASSERT_EQ(completions.size(), 6u);
    EXPECT_EQ(counters().orphaned.value(), 6u);
    EXPECT_EQ(counters().posted.value(), 0u);
    expect_whole();
    for (const Completion& completion : completions) {
        release(completion);
    }
    world->step(2);
    EXPECT_EQ(counters().orphaned.value(), 0u);
    EXPECT_EQ(counters().held.value(), 0u);
    EXPECT_EQ(pool->buffers->free(), 32u);
}

TEST_F(WorkerPoolTest, ASharedReceiveQueueIsFilledToo) {
    make_world(options(64));
    pool = &world->add_pool(64, kBytes, kReceiver);
    SteppedWorld::Srq& srq = world->add_srq({.session = kReceiver, .depth = 16, .pool = pool, .pool_share = 32});
    for (int i = 0; i < 3; ++i) {
        add_pair({.shares = {{kSender, 64, 0}}}, {.shares = {{kReceiver, 8, 0}}, .srq = &srq}, {.rnr_retry = 0});
    }
    EXPECT_EQ(counters().posted.value(), 16u);
    EXPECT_EQ(try_submit(recv(1, {.srq = &srq})), Refusal::not_receiver);
    for (std::uint64_t i = 0; i < 200; ++i) {
        send_word(i, {.qp = from[i % 3], .flags = 0});
        const auto completions = received(1);
        ASSERT_EQ(completions.size(), 1u);
        EXPECT_EQ(word(completions[0]), i);
        EXPECT_EQ(completions[0].qp, to[i % 3]->handle());
        EXPECT_EQ(completions[0].srq, srq.handle());
        release(completions[0]);
    }
    for (SteppedWorld::Qp* qp : to) {
        EXPECT_TRUE(world->close(*qp));
    }
    EXPECT_TRUE(world->poll(kReceiver).empty());
    world->close(srq);
    world->step(2);
    EXPECT_EQ(pool->buffers->free(), 64u);
    expect_whole();
}

TEST_F(WorkerPoolTest, AReceiveThatTheProviderRefusesIsTriedAgain) {
    make(32, {.depth = 8, .share = 16});
    world->soft().inject({.kind = SoftFault::Kind::post_recv, .count = 3, .error = ENOMEM});
    for (std::uint64_t i = 0; i < 100; ++i) {
        send_word(i);
        const auto completions = received(1);
        ASSERT_EQ(completions.size(), 1u) << i;
        EXPECT_EQ(word(completions[0]), i);
        release(completions[0]);
    }
    EXPECT_EQ(world->worker.counters().post_failures.value(), 3u);
    expect_whole();
}

// The completion ring has room for both pooled messages and the session's own completions, in whatever order they come.
// The session never becomes broken.
TEST_F(WorkerPoolTest, MessagesAndTheSessionsOwnRequestsShareTheRing) {
    SteppedWorld::Options small = options(8);
    small.completion_slots = 8;
    make(std::move(small), 8, {.depth = 4, .share = 8}, 1);
    std::mt19937 random(7);
    std::map<std::uint32_t, Completion> held;
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
    std::uint64_t accepted = 0;
    std::uint64_t completed = 0;
    for (int i = 0; i < 200'000; ++i) {
        switch (random() % 5) {
            case 0:
                if (sent - taken < to[0]->end->recvs().taker().posted()) {
                    send_word(sent++);
                }
                break;
            case 1: accepted += try_submit(write(0, {.qp = to[0]}), kReceiver) == Refusal::none; break;
            case 2:
                if (!held.empty() && world->session(kReceiver).release(held.begin()->second) == Refusal::none) {
                    held.erase(held.begin());
                }
                break;
            case 3: {
                Completion completion;
                if (world->session(kReceiver).poll({&completion, 1}) == 1) {
                    ASSERT_TRUE(completion.ok());
                    if (completion.pooled()) {
                        EXPECT_EQ(word(completion), taken);
                        ++taken;
                        EXPECT_TRUE(held.emplace(completion.buffer(), completion).second);
                    } else {
                        ++completed;
                    }
                }
                break;
            }
            default:
                world->step();
                world->now += 100;
                break;
        }
        (void)world->poll(kSender);
    }
    EXPECT_EQ(world->worker.counters().broken_sessions.value(), 0u);
    EXPECT_GT(taken, 5'000u);
    EXPECT_GT(completed, 5'000u);
    EXPECT_EQ(world->session(kReceiver).figures().accepted, accepted);
    EXPECT_EQ(world->session(kReceiver).figures().completed, completed);
    expect_whole();
}

// A worker whose only open requests are posted receives stays asleep, and a message wakes it.
TEST_F(WorkerPoolTest, AWorkerSleepsWithReceivesPosted) {
    SteppedWorld::Options sleeping = options(32);
    sleeping.sleeps = true;
    make(std::move(sleeping), 32, {.depth = 8, .share = 16}, 1);
    while (!world->worker.fall_asleep(world->now)) {
        world->step();
    }
    EXPECT_EQ(world->worker.only_source(), nullptr);
    world->worker.wake_up(world->now);
    send_word(5);
    const auto completions = received(1);
    ASSERT_EQ(completions.size(), 1u);
    world->step(3);
    EXPECT_TRUE(world->worker.fall_asleep(world->now));
    world->worker.wake_up(world->now);
}

}  // namespace
}  // namespace pollcore::testing
