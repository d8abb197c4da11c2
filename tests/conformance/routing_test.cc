// A CQ serves many queue pairs, and the two queues of a queue pair may use different CQs. Each completion must name its
// own queue pair and queue.
#include <map>

#include "fixture.hpp"

namespace pollcore::testing {
namespace {

// The queues are so short that all of them fit on one CQ of the test's configuration. A worker fills one CQ before it
// creates another.
class Routing : public Conformance, public ::testing::WithParamInterface<bool> {
protected:
    static constexpr std::size_t kPairs = 20;
    static constexpr std::uint32_t kDepth = 8;
    static_assert(2 * kPairs * (2 * kDepth + 1) <= 1024);

    void SetUp() override {
        QueuePairOptions options = shape();
        options.shares[0].send_depth = kDepth;
        options.recv_depth = kDepth;
        options.separate_cqs = GetParam();
        for (std::size_t i = 0; i < kPairs; ++i) {
            connect_pair(options, PathAttributes{.rnr_retry = 7});
            from.push_back(std::move(a));
            to.push_back(std::move(b));
        }
    }
    // A tag contains the pair, the queue and the turn.
    static std::uint64_t tag(std::size_t pair, bool receive, std::uint64_t turn) {
        return pair << 32 | std::uint64_t{receive} << 31 | turn;
    }
    void submit_both(std::size_t pair, std::uint64_t turn) {
        WorkRequest receive = recv(tag(pair, true, turn), 64, pair * 64);
        receive.qp = to[pair].handle();
        submit(receive);
        WorkRequest message = send(tag(pair, false, turn), 1 + static_cast<std::uint32_t>(pair));
        message.qp = from[pair].handle();
        submit(message);
    }
    void expect_in_order(const std::vector<Completion>& all) {
        for (const Completion& completion : all) {
            const std::size_t pair = completion.tag >> 32;
            const bool receive = (completion.tag >> 31 & 1) != 0;
            ASSERT_LT(pair, kPairs);
            EXPECT_EQ(completion.status, Status::success);
            EXPECT_EQ(completion.qp, (receive ? to : from)[pair].handle());
            EXPECT_EQ(completion.from_recv_queue(), receive);
            if (receive) {
                EXPECT_EQ(completion.byte_len, 1 + pair);
            }
            EXPECT_EQ(completion.tag & 0xffff, (turns[{pair, receive}]++)) << "pair " << pair;
        }
    }

    std::vector<QueuePair> from;
    std::vector<QueuePair> to;
    std::map<std::pair<std::size_t, bool>, std::uint64_t> turns;
};

TEST_P(Routing, EachQueuesCompletionsComeInOrderAndNameItsQueuePair) {
    for (std::uint64_t turn = 0; turn < 5; ++turn) {
        for (std::size_t i = 0; i < kPairs; ++i) {
            submit_both(i * 7 % kPairs, turn);
        }
        expect_in_order(await(2 * kPairs));
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

TEST_P(Routing, ClosingSomeLeavesTheOthersOnTheirCqAlone) {
    for (std::size_t i = 0; i < kPairs; ++i) {
        submit_both(i, 0);
    }
    expect_in_order(await(2 * kPairs));
    for (std::size_t i = 0; i < kPairs; ++i) {
        submit_both(i, 1);
        if (i % 2 == 0) {  // work is in flight on both queues, or it has completed and was not polled
            EXPECT_TRUE(to[i].close());
            EXPECT_TRUE(from[i].close());
        }
    }
    std::vector<Completion> others;
    std::map<std::size_t, int> ended;
    for (const Completion& completion : await(2 * kPairs)) {
        const std::size_t pair = completion.tag >> 32;
        if (pair % 2 == 0) {
            ++ended[pair];
        } else {
            others.push_back(completion);
        }
    }
    expect_in_order(others);
    EXPECT_EQ(others.size(), kPairs);
    for (std::size_t i = 0; i < kPairs; i += 2) {
        EXPECT_EQ(ended[i], 2) << "pair " << i;
    }
    for (std::uint64_t turn = 2; turn < 5; ++turn) {
        for (std::size_t i = 1; i < kPairs; i += 2) {
            submit_both(i, turn);
        }
        expect_in_order(await(kPairs));
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Cqs, Routing, ::testing::Bool(), [](const auto& which) {
    return which.param ? std::string("ReceivesOnAnotherCqThanSends") : std::string("AllOnOneCq");
});

}  // namespace
}  // namespace pollcore::testing
