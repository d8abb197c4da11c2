// The worker searches rings and queues for uses of an object while it continues its work (worker/in_use.hpp).
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

// The ring holds 600 requests, and the worker takes one in each step.
class SearchTest : public WorkerFixture {
protected:
    void SetUp() override {
        SteppedWorld::Options options;
        options.worker.submit_burst = 1;
        options.submission_slots = options.completion_slots = 1024;
        SteppedWorld::QpShape shape;
        shape.shares = {{0, 700, 16}};
        make(shape, options);
        unnamed = &buffer();
        for (int i = 0; i < 600; ++i) {
            submit(write(1));
        }
    }
    int steps_until_over(std::uint64_t search, bool expected) {
        for (int steps = 0; steps < 10000; ++steps) {
            if (const std::optional<bool> found = world->proxy.found(search)) {
                EXPECT_EQ(*found, expected);
                return steps;
            }
            world->step();
        }
        ADD_FAILURE() << "the search does not end";
        return 0;
    }
    std::uint64_t begin(std::uint32_t client = 0) {
        return world->proxy.begin_finding_key(0, 0, unnamed->lkey(), {}, client);
    }

    Buffer* unnamed = nullptr;  // no request names it
};

TEST_F(SearchTest, SearchesTakeTurns) {
    const std::uint64_t lengthy = begin();
    const std::uint64_t brief = begin(8);  // a search for a process that has no session here
    EXPECT_LE(steps_until_over(brief, false), 8);
    EXPECT_GE(steps_until_over(lengthy, false), 600 / 64 - 4);
}

TEST_F(SearchTest, WhatLeavesMeanwhileIsLeftOut) {
    const std::uint64_t first = begin();
    const std::uint64_t second = begin();
    world->step(4);
    world->proxy.remove_session(0, true);
    // The session in whose ring the searches stood is gone. There is another session now, whose ring is empty.
    (void)world->add_session();
    EXPECT_LE(steps_until_over(first, false), 8);
    EXPECT_LE(steps_until_over(second, false), 8);
}

TEST_F(SearchTest, AsManyAsAreBegunLeaveRoomForCalls) {
    std::vector<std::uint64_t> searches;
    EXPECT_THROW(
        for (;;) { searches.push_back(begin()); }, NoRoomForCommand);
    EXPECT_EQ(searches.size(), kCommandSlots / 2);
    EXPECT_EQ(world->counters.command_ring_full.value(), 1u);
    world->add_session();  // a command that waits for its answer
    for (const std::uint64_t search : searches) {
        (void)steps_until_over(search, false);
    }
    const std::uint64_t again = begin();
    (void)steps_until_over(again, false);
}

TEST_F(SearchTest, OneThatNobodyAsksAboutIsForgotten) {
    const std::uint64_t ignored = begin();
    world->proxy.ignore(ignored);
    const std::uint64_t search = begin();
    (void)steps_until_over(search, false);
    world->step(4);
    EXPECT_FALSE(world->proxy.found(ignored).has_value());
}

}  // namespace
}  // namespace pollcore::testing
