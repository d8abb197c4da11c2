// What is left of a queue pair's life when the next one begins: completions that the application has not polled, and what the worker
// remembers of failures.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

class WorkerResetTest : public ::testing::Test {
protected:
    WorkerResetTest() {
        std::tie(a, b) = world.pair(SteppedWorld::QpShape{});
        region = &world.register_memory(memory.data(), memory.size());
    }
    void submit(const WorkRequest& request) { ASSERT_EQ(world.session().try_submit(request), Refusal::none); }
    void begin_again() {
        world.reset(*a);
        world.reset(*b);
        world.connect(*a, *b);
        world.connect(*b, *a);
    }
    [[nodiscard]] WorkRequest write(std::uint64_t tag) const { return SteppedWorld::write(tag, *a, *region); }

    alignas(64) std::array<std::byte, 256> memory{};
    SteppedWorld world;
    SteppedWorld::Qp* a = nullptr;
    SteppedWorld::Qp* b = nullptr;
    ibv_mr* region = nullptr;
};

// The first stands alone in its queue, so it is answered in its line, and so would be the first of the new life, which is read before the ring.
TEST_F(WorkerResetTest, CompletionsThatStandInTheRingComeBeforeTheFirstOfTheNewLife) {
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
        submit(write(tag));
    }
    world.step(50);
    Completion first;
    ASSERT_EQ(world.session().poll({&first, 1}), 1u);
    EXPECT_EQ(first.tag, 0u);
    begin_again();
    submit(write(4));
    world.step(50);
    std::vector<std::uint64_t> tags;
    for (const Completion& completion : world.poll()) {
        tags.push_back(completion.tag);
    }
    EXPECT_EQ(tags, (std::vector<std::uint64_t>{1, 2, 3, 4}));
}

// What is unsignaled and behind a failure counts as lost.
TEST_F(WorkerResetTest, AFailureIsNotHeldAgainstWhatComesAfterIt) {
    WorkRequest bad = write(1);
    bad.rkey ^= 0x5a5a;
    submit(bad);
    const auto failed = world.await(1);
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_EQ(failed[0].status, Status::rem_access_err);
    begin_again();
    WorkRequest quiet = write(2);
    quiet.flags = 0;
    submit(quiet);
    submit(write(3));
    world.step(50);
    const auto completions = world.poll();
    ASSERT_EQ(completions.size(), 1u) << "the other one was retired";
    EXPECT_EQ(completions[0].tag, 3u);
    EXPECT_EQ(world.session().figures().retired, 1u);
}

}  // namespace
}  // namespace pollcore::testing
