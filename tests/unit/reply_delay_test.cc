// The delay before a session's first look for an answer in its request's cache line.
#include "session/reply_delay.hpp"

#include <gtest/gtest.h>

namespace pollcore {
namespace {

/// The delay that ReplyDelay has learned after many answers that took `answer_takes` cycles each.
std::uint32_t learned(std::uint32_t answer_takes) {
    ReplyDelay delay;
    for (int i = 0; i < 10'000; ++i) {
        delay.begin();
        delay.looked(delay.cycles() >= answer_takes);
        delay.looked(true);  // has no effect, because only the first look counts
    }
    return delay.cycles();
}

TEST(ReplyDelay, ComesToWhatAnAnswerTakes) {
    for (const std::uint32_t cycles : {50u, 180u, 390u}) {
        EXPECT_NEAR(learned(cycles), cycles, 9) << "a step back";
    }
}

TEST(ReplyDelay, NeverKeepsAnybodyWaitingLong) {
    EXPECT_EQ(learned(100'000), 400u);
    EXPECT_EQ(learned(0), 10u);
}

}  // namespace
}  // namespace pollcore
