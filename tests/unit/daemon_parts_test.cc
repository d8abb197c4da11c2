// The parts of pollcored that are plain logic: how an idle service waits, and when a watchdog is fed.
#include <chrono>
#include <optional>

#include <gtest/gtest.h>

#include "pollcored/idle_ladder.hpp"
#include "pollcored/notifier.hpp"

namespace pollcore::daemon {
namespace {

using namespace std::chrono_literals;
using Rung = IdleLadder::Rung;

const IdleLadder::Clock::time_point kStart{1h};

TEST(IdleLadder, SpinsThenYieldsThenSleepsLongerEachTimeUpToALimit) {
    IdleLadder ladder;
    EXPECT_EQ(ladder.next(kStart).rung, Rung::spin);
    EXPECT_EQ(ladder.next(kStart + IdleLadder::kSpinFor - 1ns).rung, Rung::spin);
    EXPECT_EQ(ladder.next(kStart + IdleLadder::kSpinFor).rung, Rung::yield);
    EXPECT_EQ(ladder.next(kStart + IdleLadder::kYieldFor - 1ns).rung, Rung::yield);

    auto expected = IdleLadder::kSleepMin;
    for (int i = 0; i < 12; ++i) {
        const IdleLadder::Wait wait = ladder.next(kStart + IdleLadder::kYieldFor);
        ASSERT_EQ(wait.rung, Rung::sleep);
        EXPECT_EQ(wait.duration, expected) << "sleep " << i;
        expected = std::min(expected * 2, IdleLadder::kSleepMax);
    }
}

TEST(IdleLadder, BeginsAnewAfterWork) {
    IdleLadder ladder;
    (void)ladder.next(kStart);
    EXPECT_EQ(ladder.next(kStart + 1s).rung, Rung::sleep);
    ladder.worked();
    EXPECT_EQ(ladder.next(kStart + 2s).rung, Rung::spin);
    EXPECT_EQ(ladder.next(kStart + 4s).duration, IdleLadder::kSleepMin);
}

TEST(ProgressCheck, NamesTheFirstWorkerThatMadeNoStep) {
    ProgressCheck check;
    EXPECT_EQ(check.stuck_worker({5, 5, 5}), std::nullopt) << "nothing to compare with yet";
    EXPECT_EQ(check.stuck_worker({6, 7, 8}), std::nullopt);
    EXPECT_EQ(check.stuck_worker({7, 7, 8}), 1u);
    EXPECT_EQ(check.stuck_worker({8, 8, 9}), std::nullopt) << "it moves again";
}

TEST(ProgressCheck, IsContentWithoutWorkers) {
    ProgressCheck check;
    EXPECT_EQ(check.stuck_worker({}), std::nullopt);
    EXPECT_EQ(check.stuck_worker({}), std::nullopt);
}

}  // namespace
}  // namespace pollcore::daemon
