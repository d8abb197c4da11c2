// A reset ends one life of a queue pair and begins the next one. The first life leaves behind completions that the
// application has not polled, and the worker's record of failures.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class WorkerResetTest : public WorkerFixture {
protected:
    WorkerResetTest() { make(); }
    void begin_again() {
        world->reset(*a);
        world->reset(*b);
        connect(*a, *b);
    }
};

// When a request is alone in its queue, its completion goes into the request's cache line (a reply). The session reads
// replies before the ring, so a reply at the beginning of the new life would overtake the completions of the old life.
TEST_F(WorkerResetTest, CompletionsThatStandInTheRingComeBeforeTheFirstOfTheNewLife) {
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        submit(write(tag));
    }
    world->step(50);
    Completion first;
    ASSERT_EQ(world->session().poll({&first, 1}), 1u);
    EXPECT_EQ(first.tag, 0u);
    begin_again();
    submit(write(4));
    world->step(50);
    std::vector<std::uint64_t> tags;
    for (const Completion& completion : world->poll()) {
        tags.push_back(completion.tag);
    }
    EXPECT_EQ(tags, (std::vector<std::uint64_t>{1, 2, 3, 4}));
}

// After a failure, an unsignaled request without a completion counts as lost. A failure of the life before must not
// have this effect.
TEST_F(WorkerResetTest, AFailureIsNotHeldAgainstWhatComesAfterIt) {
    WorkRequest bad = write(1);
    bad.rkey ^= 0x5a5a;
    submit(bad);
    const auto failed = world->await(1);
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_EQ(failed[0].status, Status::rem_access_err);
    begin_again();
    submit(write(2, {.flags = 0}));
    submit(write(3));
    world->step(50);
    const auto completions = world->poll();
    ASSERT_EQ(completions.size(), 1u) << "the other one was retired";
    EXPECT_EQ(completions[0].tag, 3u);
    EXPECT_EQ(world->session().figures().retired, 1u);
}

// Each index of a handle has 65535 generations.
class WorkerManyLives : public WorkerResetTest {
protected:
    static constexpr std::uint32_t kDepth = 16;  // depth of each queue pair's shares

    /// Resets queue pair a with the life number at which the old handle comes again, after 65535 lives.
    void let_the_generation_come_again() {
        const QpHandle before = a->handle();
        ASSERT_TRUE(world->reset(*a, 1'000'000, before.generation - 1u + 0xffff));
        world->reset(*b);
        connect(*a, *b);
        ASSERT_EQ(a->handle(), before);
    }
    void expect_room_for_all() {
        for (int round = 0; round < 3; ++round) {
            for (std::uint64_t tag = 0; tag < kDepth; ++tag) {
                submit(write(tag));
            }
            EXPECT_EQ(try_submit(write(kDepth)), Refusal::send_queue_full);
            EXPECT_EQ(world->await(kDepth).size(), kDepth);
        }
    }
};

// In this test the session looks for unsignaled successes only when it needs room in the send queue.
TEST_F(WorkerManyLives, WhatWasNotSignaledTakesNoRoomOfALaterLife) {
    for (std::uint64_t tag = 0; tag < 7; ++tag) {
        submit(write(tag, {.flags = 0}));
    }
    world->step(50);
    let_the_generation_come_again();
    expect_room_for_all();
}

TEST_F(WorkerManyLives, WhatWasNotPolledIsPolledBeforeALaterLifeBegins) {
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
        submit(write(tag));
        submit(write(tag, {.flags = 0}));
    }
    world->step(50);
    let_the_generation_come_again();
    EXPECT_EQ(try_submit(write(9)), Refusal::completion_ring_full);
    EXPECT_EQ(world->poll().size(), 3u);
    expect_room_for_all();
}

TEST(Lives, HaveAGenerationAndAnEpochOfTheirOwn) {
    EXPECT_EQ(life_of(0).generation, 1u);
    EXPECT_EQ(life_of(0).epoch, 0u);
    EXPECT_EQ(life_of(0xfffe).generation, 0xffffu);
    EXPECT_EQ(life_of(0xffff).generation, 1u);
    EXPECT_EQ(life_of(0xffff).epoch, 1u);
}

}  // namespace
}  // namespace pollcore::testing
