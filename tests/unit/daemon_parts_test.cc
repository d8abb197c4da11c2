// The part of pollcored that is plain logic: when a watchdog is fed.
#include <optional>

#include <gtest/gtest.h>

#include "pollcored/notifier.hpp"

namespace pollcore::daemon {
namespace {

TEST(ProgressCheck, NamesTheFirstWorkerThatMadeNoStep) {
    ProgressCheck check;
    EXPECT_EQ(check.stuck_worker({{5}, {5}, {5}}), std::nullopt) << "nothing to compare with yet";
    EXPECT_EQ(check.stuck_worker({{6}, {7}, {8}}), std::nullopt);
    EXPECT_EQ(check.stuck_worker({{7}, {7}, {8}}), 1u);
    EXPECT_EQ(check.stuck_worker({{8}, {8}, {9}}), std::nullopt) << "it moves again";
}

TEST(ProgressCheck, LetsAWorkerSleep) {
    ProgressCheck check;
    EXPECT_EQ(check.stuck_worker({{5}}), std::nullopt);
    EXPECT_EQ(check.stuck_worker({{5, true}}), std::nullopt) << "by its own word";
    EXPECT_EQ(check.stuck_worker({{5, false}}), 0u) << "it has woken up, and does not move";
}

TEST(ProgressCheck, IsContentWithoutWorkers) {
    ProgressCheck check;
    EXPECT_EQ(check.stuck_worker({}), std::nullopt);
    EXPECT_EQ(check.stuck_worker({}), std::nullopt);
}

}  // namespace
}  // namespace pollcore::daemon
