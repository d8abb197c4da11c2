// The worker's answers to the control thread. Some answers are taken late, and some commands are ignored before their
// answers are taken.
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class Answers : public WorkerFixture {
protected:
    void SetUp() override { make(); }

    /// Begins the search for a window that the worker does not know. The worker therefore answers at once.
    std::uint64_t begin() { return world->proxy.begin_finding_window({.index = 1, .generation = 1}); }
    /// Begins more searches than the ring of answers has slots, and takes no answer.
    std::vector<std::uint64_t> fill() {
        std::vector<std::uint64_t> begun;
        while (begun.size() < kAnswerSlots) {
            begun.push_back(begin());
            world->step();
        }
        for (std::uint32_t more = 0; more < kCommandSlots / 4; ++more) {
            begun.push_back(begin());
        }
        world->step(static_cast<int>(kCommandSlots));
        return begun;
    }
    /// Whether the answer to `command` comes within 100 steps.
    bool answered(std::uint64_t command) {
        for (int steps = 0; steps < 100; ++steps) {
            if (const std::optional<bool> found = world->proxy.found(command)) {
                EXPECT_FALSE(*found);
                return true;
            }
            world->step();
        }
        return false;
    }
};

TEST_F(Answers, AreAllThereHoweverLateTheyAreTaken) {
    for (const std::uint64_t command : fill()) {
        ASSERT_TRUE(answered(command)) << command;
    }
    EXPECT_EQ(world->counters.answers_untaken.value(), 0u);
}

TEST_F(Answers, WhatIsSaidUnaskedWaitsForRoom) {
    (void)fill();
    world->soft().inject({.kind = SoftFault::Kind::poll_cq});
    submit(write(1));
    world->step(5);
    ASSERT_EQ(world->worker.counters().failed_polls.value(), 1u);
    EXPECT_TRUE(world->proxy.take_unasked().empty()) << "the ring was full";
    std::vector<Answer> said;
    for (int steps = 0; steps < 10 && said.empty(); ++steps) {
        world->step();
        said = world->proxy.take_unasked();
    }
    ASSERT_EQ(said.size(), 1u);
    EXPECT_EQ(said[0].kind, AnswerKind::cq_failed);
    EXPECT_EQ(said[0].index, a->end->options().send_cq);
}

TEST_F(Answers, ToWhatNobodyAsksAboutAreCountedAndNotKept) {
    const std::uint64_t unanswered = begin();
    world->proxy.ignore(unanswered);
    const std::uint64_t answered_before = begin();
    const std::uint64_t asked_about = begin();
    EXPECT_TRUE(answered(asked_about));
    EXPECT_EQ(world->counters.answers_untaken.value(), 1u);
    world->proxy.ignore(answered_before);
    EXPECT_EQ(world->counters.answers_untaken.value(), 2u);
    EXPECT_EQ(world->proxy.found(answered_before), std::nullopt);
    world->proxy.ignore(asked_about);  // no effect, because this answer was already taken
    EXPECT_EQ(world->counters.answers_untaken.value(), 2u);
}

}  // namespace
}  // namespace pollcore::testing
