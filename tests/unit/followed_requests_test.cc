// Followed requests: the worker's notes and the session's are joined, and their times are made whole.
#include "control/followed_requests.hpp"

#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace pollcore {
namespace {

class FollowedRequestsTest : public ::testing::Test {
protected:
    /// A time whose lower half wraps soon.
    static constexpr std::uint64_t kBegin = (std::uint64_t{7} << 32) - 1000;

    FollowedRequestsTest() { EXPECT_TRUE(look(kBegin).empty()); }
    std::vector<FollowedRequest> look(std::uint64_t now) {
        std::vector<FollowedRequest> found;
        followed.look(*trace, now, [&](const FollowedRequest& request) { found.push_back(request); });
        return found;
    }
    void complete(std::uint64_t submitted, std::uint64_t taken, std::uint64_t completed) const {
        trace->worker.note({static_cast<std::uint32_t>(submitted) | taken << 32, static_cast<std::uint32_t>(completed),
                            77 | std::uint64_t{2} << 32});
    }
    void poll(std::uint64_t completed, std::uint64_t polled) const {
        trace->application.note({static_cast<std::uint32_t>(completed) | polled << 32});
    }

    std::unique_ptr<SessionTrace> trace = std::make_unique<SessionTrace>();
    FollowedRequests followed;
};

TEST_F(FollowedRequestsTest, ARequestIsGivenAfterTheLookThatFollowsItsCompletion) {
    complete(kBegin + 10, kBegin + 500, kBegin + 1500);  // the lower half wraps meanwhile
    EXPECT_TRUE(look(kBegin + 2000).empty());
    poll(kBegin + 1500, kBegin + 2500);
    const auto found = look(kBegin + 3000);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].qp, 77u);
    EXPECT_EQ(found[0].opcode, 2u);
    EXPECT_EQ(found[0].submitted, kBegin + 10);
    EXPECT_EQ(found[0].taken, kBegin + 500);
    EXPECT_EQ(found[0].completed, kBegin + 1500);
    EXPECT_EQ(found[0].polled, kBegin + 2500);
    EXPECT_TRUE(look(kBegin + 4000).empty());
}

TEST_F(FollowedRequestsTest, APollThatWasSeenBeforeTheCompletionCounts) {
    complete(kBegin + 1, kBegin + 2, kBegin + 3);
    poll(kBegin + 3, kBegin + 4);
    (void)look(kBegin + 100);
    const auto found = look(kBegin + 200);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].polled, kBegin + 4);
}

TEST_F(FollowedRequestsTest, ANoteThatIsWrittenDuringTheLookIsLaterThanTheLook) {
    complete(kBegin + 1, kBegin + 2, kBegin + 150);
    poll(kBegin + 150, kBegin + 250);
    (void)look(kBegin + 100);
    const auto found = look(kBegin + 200);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].submitted, kBegin + 1);
    EXPECT_EQ(found[0].completed, kBegin + 150);
    EXPECT_EQ(found[0].polled, kBegin + 250);
}

TEST_F(FollowedRequestsTest, WithoutAPollTheTimeIsUnknown) {
    complete(kBegin + 1, kBegin + 2, kBegin + 3);
    poll(kBegin + 33, kBegin + 44);  // of another request
    (void)look(kBegin + 100);
    const auto found = look(kBegin + 200);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].polled, 0u);
}

TEST_F(FollowedRequestsTest, AfterALongPauseNothingIsGuessed) {
    complete(kBegin + 1, kBegin + 2, kBegin + 3);
    EXPECT_TRUE(look(kBegin + FollowedRequests::kApart + 1).empty());
    EXPECT_TRUE(look(kBegin + FollowedRequests::kApart + 2).empty());
    complete(kBegin + FollowedRequests::kApart, kBegin + FollowedRequests::kApart,
             kBegin + FollowedRequests::kApart + 3);
    (void)look(kBegin + FollowedRequests::kApart + 10);
    EXPECT_EQ(look(kBegin + FollowedRequests::kApart + 20).size(), 1u);
}

TEST_F(FollowedRequestsTest, GarbageOfAnotherProcessGivesABoundedNumber) {
    std::memset(static_cast<void*>(trace.get()), 0xa5, sizeof(SessionTrace));
    const std::size_t first = look(kBegin + 10).size();
    const std::size_t second = look(kBegin + 20).size();
    EXPECT_LE(first + second, 2 * RecentLog<3>::kKept);
}

}  // namespace
}  // namespace pollcore
