// Tests the runtime's choice between the two ways to poll a CQ.
#include "device/poll_choice.hpp"

#include <gtest/gtest.h>

#include "device/soft/soft_device.hpp"

namespace pollcore {
namespace {

constexpr PollChoice kExtendedIsFaster{true, "it was measured"};

TEST(PollChoice, ByAutoIsWhatTheTableHas) {
    EXPECT_TRUE(choose_poll(PollVerbs::automatic, true, kExtendedIsFaster, false).extended);
    EXPECT_EQ(choose_poll(PollVerbs::automatic, true, kExtendedIsFaster, false).why, "it was measured");
    for (const PollChoice& measured : {kPollOfMlx5, kPollOfSoftware, kPollOfSoftRoce, kPollOfOthers}) {
        EXPECT_FALSE(choose_poll(PollVerbs::automatic, true, measured, false).extended) << measured.why;
        EXPECT_EQ(choose_poll(PollVerbs::automatic, true, measured, false).why, measured.why);
    }
}

TEST(PollChoice, ByAutoIsPlainWhereThereAreNoExtendedCqs) {
    const PollChoice choice = choose_poll(PollVerbs::automatic, false, kExtendedIsFaster, false);
    EXPECT_FALSE(choice.extended);
    EXPECT_EQ(choice.why, "the device has no extended completion queues");
}

TEST(PollChoice, IsTheConfigurationsWhereThatSays) {
    for (const PollChoice& table : {kExtendedIsFaster, kPollOfMlx5}) {
        EXPECT_TRUE(choose_poll(PollVerbs::extended, true, table, false).extended);
        EXPECT_FALSE(choose_poll(PollVerbs::plain, true, table, false).extended);
        EXPECT_EQ(choose_poll(PollVerbs::extended, true, table, false).why, "poll = \"extended\"");
        EXPECT_EQ(choose_poll(PollVerbs::plain, true, table, false).why, "poll = \"plain\"");
    }
}

// ibv_poll_cq cannot return time stamps, whatever was configured or measured.
TEST(PollChoice, WithTimeStampsIsExtendedAlways) {
    for (const PollVerbs poll : {PollVerbs::automatic, PollVerbs::extended, PollVerbs::plain}) {
        for (const PollChoice& table :
             {kExtendedIsFaster, kPollOfMlx5, kPollOfSoftware, kPollOfSoftRoce, kPollOfOthers}) {
            EXPECT_TRUE(choose_poll(poll, true, table, true).extended);
            EXPECT_EQ(choose_poll(poll, true, table, true).why, "only so can time stamps be read");
        }
    }
}

TEST(PollChoice, OfADeviceThatNobodyMeasuredIsWhatTheVerbsPromise) {
    EXPECT_EQ(DeviceLimits{}.poll.why, kPollOfOthers.why);
    EXPECT_EQ(default_soft_limits().poll.why, kPollOfSoftware.why);
}

}  // namespace
}  // namespace pollcore
