// Which way to poll is chosen for a CQ.
#include <gtest/gtest.h>

#include "device/poll_choice.hpp"
#include "device/soft/soft_device.hpp"

namespace pollcore {
namespace {

constexpr PollChoice kExtendedIsFaster{true, "it was measured"};

TEST(PollChoice, ByAutoIsWhatTheTableHas) {
    EXPECT_TRUE(choose_poll(PollVerbs::automatic, true, kExtendedIsFaster).extended);
    EXPECT_EQ(choose_poll(PollVerbs::automatic, true, kExtendedIsFaster).why, "it was measured");
    for (const PollChoice& measured : {kPollOfMlx5, kPollOfSoftware, kPollOfSoftRoce, kPollOfOthers}) {
        EXPECT_FALSE(choose_poll(PollVerbs::automatic, true, measured).extended) << measured.why;
        EXPECT_EQ(choose_poll(PollVerbs::automatic, true, measured).why, measured.why);
    }
}

TEST(PollChoice, ByAutoIsPlainWhereThereAreNoExtendedCqs) {
    const PollChoice choice = choose_poll(PollVerbs::automatic, false, kExtendedIsFaster);
    EXPECT_FALSE(choice.extended);
    EXPECT_EQ(choice.why, "the device has no extended completion queues");
}

TEST(PollChoice, IsTheConfigurationsWhereThatSays) {
    for (const PollChoice& table : {kExtendedIsFaster, kPollOfMlx5}) {
        EXPECT_TRUE(choose_poll(PollVerbs::extended, true, table).extended);
        EXPECT_FALSE(choose_poll(PollVerbs::plain, true, table).extended);
        EXPECT_EQ(choose_poll(PollVerbs::extended, true, table).why, "poll = \"extended\"");
        EXPECT_EQ(choose_poll(PollVerbs::plain, true, table).why, "poll = \"plain\"");
    }
}

TEST(PollChoice, OfADeviceThatNobodyMeasuredIsWhatTheVerbsPromise) {
    EXPECT_EQ(DeviceLimits{}.poll.why, kPollOfOthers.why);
    EXPECT_EQ(default_soft_limits().poll.why, kPollOfSoftware.why);
}

}  // namespace
}  // namespace pollcore
