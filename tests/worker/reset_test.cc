// What is left of a queue pair's life when the next one begins: completions that the application has not polled, and what the worker
// remembers of failures.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

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

// The first stands alone in its queue, so it is answered in its line, and so would be the first of the new life, which is read before the ring.
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

// What is unsignaled and behind a failure counts as lost.
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

}  // namespace
}  // namespace pollcore::testing
