// No session starves. These tests count for how many steps a quiet session waits on a worker that other sessions flood.
//
// All tests but the last measure the quiet session alone, and then beside the flood. The quiet session's worst wait may
// grow only by the bound that the test states, however long the flood's queues are.
#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class Balance : public WorkerFixture, public ::testing::WithParamInterface<bool> {
protected:
    static constexpr std::uint32_t kFloods = 3;
    static constexpr std::uint32_t kDepth = 64;

    static SteppedWorld::Options options() {
        SteppedWorld::Options with;
        with.extended_cqs = GetParam();
        with.worker.submit_burst = with.worker.complete_burst = with.worker.qp_burst = 4;
        with.submission_slots = with.completion_slots = kDepth;
        return with;
    }

    struct Link {
        Qp* near = nullptr;
        std::uint32_t session = 0;
    };

    Balance() { make_world(options()); }

    Link link(std::vector<ShareOptions> shares, std::uint32_t cq) {
        const std::uint32_t session = shares[0].session;
        return {pair({.shares = std::move(shares), .send_cq = cq, .recv_cq = cq}).first, session};
    }
    /// Submits requests until one is refused. Returns false if even the first was refused.
    bool fill(const Link& over, std::uint32_t session) {
        bool some = false;
        while (try_submit(write(1, {.qp = over.near}), session) == Refusal::none) {
            some = true;
        }
        return some;
    }

    /// The largest number of steps between the submission of a single write and its completion, over 60 tries.
    int worst_wait(const Link& quiet, std::uint32_t session, const std::function<void()>& flood) {
        int worst = 0;
        for (std::uint64_t round = 0; round < 60; ++round) {
            // The number of steps before the write varies, so that the flood is in different phases at the write.
            for (std::uint64_t i = 0; i < 1 + round % 7; ++i) {
                flood();
                world->step();
            }
            flood();
            submit(write(1000 + round, {.qp = quiet.near}), session);
            int steps = 0;
            std::vector<Completion> came;
            while (came.empty() && steps < 1000) {
                world->step();
                ++steps;
                came = world->poll(session);
                flood();
            }
            EXPECT_EQ(came.size(), 1u);
            worst = std::max(worst, steps);
        }
        return worst;
    }
};

TEST_P(Balance, AQuietCqWaitsNoLongerBesideBusyOnes) {
    const std::uint32_t quiet_session = world->add_session();
    const std::uint32_t quiet_cq = world->add_cq();
    const Link quiet = link({{quiet_session, 4, 0}}, quiet_cq);
    const int alone = worst_wait(quiet, quiet_session, [] {});
    std::vector<Link> floods;
    for (std::uint32_t i = 0; i < kFloods; ++i) {
        floods.push_back(link({{world->add_session(), kDepth, 0}}, world->add_cq()));
    }
    std::uint64_t flooded = 0;
    const int beside = worst_wait(quiet, quiet_session, [&] {
        for (const Link& flood : floods) {
            (void)world->poll(flood.session);
            flooded += fill(flood, flood.session);
        }
    });
    // Each step polls each CQ for one burst. A packet may wait one step for its turn in the device.
    EXPECT_LE(beside, alone + 1) << "alone " << alone;
    EXPECT_GT(flooded, 100u);
    EXPECT_GT(world->cq(1).mark().taken, 4 * world->cq(quiet_cq).mark().taken) << "the others were not busy";
    EXPECT_LT(world->cq(1).mark().emptied, world->worker.counters().steps.value()) << "the others were never full";
    RecordProperty("worst_wait_alone", alone);
    RecordProperty("worst_wait_beside_busy_cqs", beside);
}

TEST_P(Balance, AQuietSessionWaitsNoLongerBesideFloodingOnes) {
    // All sessions share one CQ, and more completions are ready than fit into one burst. The number of completions
    // ahead of the quiet session's own completion is then bounded by the number of requests that the floods may have
    // outstanding.
    const std::uint32_t quiet_session = world->add_session();
    const std::uint32_t cq = world->add_cq(4096);
    const Link quiet = link({{quiet_session, 4, 0}}, cq);
    const int alone = worst_wait(quiet, quiet_session, [] {});
    std::vector<Link> floods;
    for (std::uint32_t i = 0; i < kFloods; ++i) {
        floods.push_back(link({{world->add_session(), 8, 0}}, cq));
    }
    const int beside = worst_wait(quiet, quiet_session, [&] {
        for (const Link& flood : floods) {
            (void)world->poll(flood.session);
            fill(flood, flood.session);
        }
    });
    const int outstanding = kFloods * 8;
    EXPECT_LE(beside, alone + 1 + outstanding / 4) << "alone " << alone;
    RecordProperty("worst_wait_alone", alone);
    RecordProperty("worst_wait_beside_flooding_sessions", beside);
}

TEST_P(Balance, AQuietSessionGetsItsTurnOnAQpThatOthersFlood) {
    const std::uint32_t quiet_session = world->add_session();
    std::vector<ShareOptions> shares{{quiet_session, 4, 0}};
    for (std::uint32_t i = 0; i < kFloods; ++i) {
        shares.push_back({world->add_session(), 8, 0});
    }
    const std::uint32_t cq = world->add_cq();
    const Link shared = link(shares, cq);
    const int alone = worst_wait(shared, quiet_session, [] {});
    const int beside = worst_wait(shared, quiet_session, [&] {
        for (std::uint32_t session = 1; session <= kFloods; ++session) {
            (void)world->poll(session);
            fill(shared, session);
        }
    });
    // In each step the QP's budget goes to one session, and each session gets its turn. The write then queues behind
    // the other sessions' requests in the send queue.
    const int outstanding = kFloods * 8;
    EXPECT_LE(beside, alone + static_cast<int>(kFloods) + 1 + outstanding / 4) << "alone " << alone;
    RecordProperty("worst_wait_alone", alone);
    RecordProperty("worst_wait_on_a_flooded_qp", beside);
}

TEST_P(Balance, AFloodedQpTakesItsBudgetAndNoMoreInEachStep) {
    const std::uint32_t flooding = world->add_session();
    const Link flood = link({{flooding, kDepth, 0}}, world->add_cq());
    const std::uint32_t other = world->add_session();
    const Link quiet = link({{other, 4, 0}}, world->add_cq());
    ASSERT_TRUE(fill(flood, flooding));
    std::uint64_t before = world->worker.counters().sends.value();
    for (int step = 0; step < 8; ++step) {
        submit(write(1, {.qp = quiet.near}), other);
        world->step();
        const std::uint64_t posted = world->worker.counters().sends.value() - before;
        before += posted;
        EXPECT_EQ(posted, 4u + 1u) << "in step " << step;
        (void)world->poll(other);
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, Balance, ::testing::Bool(),
                         [](const auto& way) { return std::string(way.param ? "Extended" : "Plain"); });

}  // namespace
}  // namespace pollcore::testing
