// An idle worker climbs a ladder, the list of its ways to wait, and may fall asleep at its end. The ways to wait and
// the clock are scripted here.
#include <poll.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/run.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

using namespace std::chrono_literals;

// Records how the worker's loop waits. Each wait takes 10 cycles. After `most` waits the script stops the loop.
class LadderScript final : public IdleWays {
public:
    LadderScript(SteppedWorld& world, int most) : world_(world), turns_(most) {}

    void monitor(const RingConsumer<WorkRequest>* only_source) noexcept override {
        turn(only_source != nullptr ? "watch" : "rest");
    }
    void yield() noexcept override { turn("yield"); }
    void wait(std::span<pollfd> fds, std::uint64_t deadline_ns, std::uint64_t most_ns) noexcept override {
        turn(std::min(deadline_ns, most_ns) == CompletionChannel::kNever ? "sleep" : "sleep for a time");
        if (on_sleep) {
            on_sleep();
        }
        (void)::poll(fds.data(), fds.size(), 0);
    }
    std::uint64_t now() noexcept { return world_.now += 1; }

    std::vector<std::string> seen;
    std::function<void()> on_turn;
    std::function<void()> on_sleep;
    std::atomic<bool> stop{false};

private:
    void turn(const char* what) noexcept {
        world_.now += 10;
        seen.emplace_back(what);
        if (on_turn) {
            on_turn();
        }
        if (--turns_ == 0) {
            stop = true;
            signal_event(world_.worker.bell());
        }
    }

    SteppedWorld& world_;
    int turns_;
};

class WaitingTest : public WorkerFixture {
protected:
    WaitingTest() { make({}, options()); }
    static SteppedWorld::Options options() {
        SteppedWorld::Options options;
        options.sleeps = true;
        return options;
    }
    void climb(LadderScript& turns, const IdleLadder& ladder) {
        turn_worker(
            world->worker, turns.stop, ladder, turns, [&] { return turns.now(); }, 1.0);
    }
    [[nodiscard]] bool readable(int fd) const {
        pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
        return ::poll(&one, 1, 0) == 1;
    }
};

TEST_F(WaitingTest, TheLadderIsClimbedByTheTimesOfItsRungs) {
    LadderScript turns(*world, 12);
    climb(turns, {{IdlePolicy::yield, 50ns}, {IdlePolicy::monitor, 30ns}, {IdlePolicy::event}});
    const std::vector<std::string> expected{"yield", "yield", "yield", "yield", "yield", "watch",
                                            "watch", "watch", "sleep", "sleep", "sleep", "sleep"};
    EXPECT_EQ(turns.seen, expected);
    const auto cycles = [&](IdlePolicy policy) {
        return world->worker.counters().idle_cycles[static_cast<std::size_t>(policy)].value();
    };
    EXPECT_GE(cycles(IdlePolicy::yield), 50u);
    EXPECT_GE(cycles(IdlePolicy::monitor), 30u);
    EXPECT_GE(cycles(IdlePolicy::event), 40u);
    EXPECT_EQ(cycles(IdlePolicy::spin), 0u);
}

TEST_F(WaitingTest, WorkBringsItBackToTheFirstRung) {
    LadderScript turns(*world, 9);
    turns.on_turn = [&, n = 0]() mutable {
        if (++n == 6) {
            submit(write(1));
        }
    };
    climb(turns, {{IdlePolicy::yield, 50ns}, {IdlePolicy::monitor}});
    const std::vector<std::string> expected{"yield", "yield", "yield", "yield", "yield",
                                            "watch", "yield", "yield", "yield"};
    EXPECT_EQ(turns.seen, expected);
    EXPECT_EQ(world->poll().size(), 1u);
}

TEST_F(WaitingTest, TheTimeForWhichItYieldsItsCoreIsNoPartOfATurn) {
    LadderScript turns(*world, 5);
    climb(turns, IdlePolicy::yield);
    EXPECT_LT(world->worker.counters().longest_step_cycles.value(), 10u) << "each yield takes 10";
}

TEST_F(WaitingTest, OneRungNeedsNoTime) {
    LadderScript turns(*world, 3);
    climb(turns, IdlePolicy::event);
    EXPECT_EQ(turns.seen, (std::vector<std::string>{"sleep", "sleep", "sleep"}));
    EXPECT_EQ(world->worker.counters().sleeps.value(), 1u) << "what woke it before was nothing to wake up for";
}

TEST_F(WaitingTest, AWakeUpWithNothingBehindItIsCounted) {
    LadderScript turns(*world, 4);
    turns.on_sleep = [&] { signal_event(world->worker.bell()); };
    climb(turns, IdlePolicy::event);
    const WorkerCounters& counters = world->worker.counters();
    EXPECT_EQ(counters.sleeps.value(), 4u);
    EXPECT_EQ(counters.spurious_wakeups.value(), 3u) << "after the fourth it was to stop";
    EXPECT_EQ(counters.asleep.value(), 0u);
}

// A worker that hangs between two waits must not be taken for a worker that sleeps.
TEST_F(WaitingTest, SleepsByItsOwnWordOnlyWhileItWaits) {
    const WorkerCounters& counters = world->worker.counters();
    const Heartbeat& heartbeat = world->worker.heartbeat();
    LadderScript turns(*world, 3);
    int waits = 0;
    turns.on_turn = [&] {
        ++waits;
        EXPECT_EQ(counters.asleep.value(), 1u);
        EXPECT_EQ(heartbeat.since(), Heartbeat::kForever);
    };
    ASSERT_TRUE(world->worker.fall_asleep(world->now));
    std::vector<bool> awake;
    sleep_until_woken(world->worker, turns.stop, turns, [&] {
        awake.push_back(counters.asleep.value() == 0 && heartbeat.since() != Heartbeat::kForever);
        return turns.now();
    });
    EXPECT_EQ(waits, 3);
    // For each wait the clock is read twice: at the end of the wait, in order to report that the worker is awake, and
    // then when the worker looks for a reason to stay awake.
    EXPECT_EQ(awake, (std::vector<bool>{false, true, false, true, false, true}));
    EXPECT_EQ(heartbeat.since(), world->now - 1) << "the last time but one";
}

TEST_F(WaitingTest, TheCoreWatchesARingOnlyWhereNothingElseCanCome) {
    EXPECT_NE(world->worker.only_source(), nullptr);
    submit(recv(1));
    world->step();
    EXPECT_EQ(world->worker.only_source(), nullptr) << "a message may come";
    world->close(*b);
    (void)world->poll();
    EXPECT_NE(world->worker.only_source(), nullptr);
    world->add_session();
    EXPECT_EQ(world->worker.only_source(), nullptr) << "two sessions are two lines";
}

TEST_F(WaitingTest, SleepsOnlyWhenThereIsNothing) {
    EXPECT_TRUE(world->worker.fall_asleep(world->now));
    EXPECT_EQ(world->worker.counters().asleep.value(), 1u);
    world->worker.wake_up(world->now);
    submit(write(1));
    EXPECT_FALSE(world->worker.fall_asleep(world->now)) << "a request stands in the ring";
    EXPECT_EQ(world->worker.counters().asleep.value(), 0u);
    ASSERT_EQ(world->poll().size(), 0u);
    world->step();
    const std::size_t at_once = world->poll().size();
    EXPECT_EQ(world->worker.fall_asleep(world->now), at_once == 1) << "its completion stands in the CQ";
    EXPECT_EQ(at_once + world->poll().size(), 1u) << "and was taken by that look";
    world->worker.wake_up(world->now);
    EXPECT_TRUE(world->worker.fall_asleep(world->now));
    world->worker.wake_up(world->now);
}

TEST_F(WaitingTest, ASessionRingsOnceAndOnlyForASleeper) {
    submit(write(1));
    EXPECT_FALSE(readable(world->worker.bell())) << "it is awake";
    (void)world->await(1);
    ASSERT_TRUE(world->worker.fall_asleep(world->now));
    submit(write(2));
    EXPECT_TRUE(readable(world->worker.bell()));
    EXPECT_TRUE(drain_event(world->worker.bell()));
    submit(write(3));
    EXPECT_FALSE(readable(world->worker.bell())) << "it is being woken already";
    world->worker.wake_up(world->now);
    EXPECT_EQ(world->await(2).size(), 2u);
}

TEST_F(WaitingTest, ACommandRings) {
    ASSERT_TRUE(world->worker.fall_asleep(world->now));
    world->add_session();  // the proxy steps the worker by itself
    EXPECT_TRUE(readable(world->worker.bell()));
}

TEST_F(WaitingTest, DoesNotSleepWhileAQueuePairIsParkedOrRetiring) {
    world->proxy.park(a->handle());
    EXPECT_FALSE(world->worker.fall_asleep(world->now));
    world->proxy.unpark(a->handle(), QpState::ready);
    EXPECT_TRUE(world->worker.fall_asleep(world->now));
    world->worker.wake_up(world->now);
}

TEST_F(WaitingTest, StaysAwakeWhereACqCannotBeArmed) {
    world->soft().inject({.kind = SoftFault::Kind::req_notify_cq, .count = 2, .error = ENOMEM});
    EXPECT_FALSE(world->worker.fall_asleep(world->now));
    EXPECT_FALSE(world->worker.fall_asleep(world->now));
    EXPECT_EQ(world->worker.counters().failed_arms.value(), 2u);
    EXPECT_TRUE(world->worker.fall_asleep(world->now));
    world->worker.wake_up(world->now);
}

TEST_F(WaitingTest, EventsAreAcknowledgedInBatches) {
    const WorkerCounters& counters = world->worker.counters();
    while (counters.cq_events.value() < 130) {
        submit(recv(counters.cq_events.value()));
        submit(send(counters.cq_events.value(), {.flags = 0}));
        world->step();
        while (!world->worker.fall_asleep(world->now)) {
            world->step();
        }
        world->worker.wake_up(world->now);
        (void)world->poll();
    }
    EXPECT_EQ(counters.cq_event_acks.value(), 2u);
}

TEST_F(WaitingTest, AnApplicationIsWokenOnceAndOnlyIfItSleeps) {
    Session& session = world->session();
    submit(write(1));
    (void)world->await(1);
    EXPECT_FALSE(readable(session.event_fd()));
    ASSERT_TRUE(session.arm());
    submit(write(2));
    submit(write(3));
    world->step(3);
    EXPECT_TRUE(readable(session.event_fd()));
    EXPECT_EQ(world->worker.counters().applications_woken.value(), 1u);
    EXPECT_FALSE(session.arm()) << "completions stand in the ring";
    EXPECT_EQ(world->poll().size(), 2u);
    EXPECT_TRUE(session.arm());
    EXPECT_FALSE(readable(session.event_fd()));
}

// The three ways: a single completion goes into its request's cache line, several completions go into the ring, and the
// completion of an atomic, which is no ordinary request, goes the general way.
TEST_F(WaitingTest, AnApplicationIsWokenWhicheverWayItsCompletionComes) {
    Session& session = world->session();
    const std::vector<std::vector<WorkRequest>> ways{
        {write(1)}, {write(2), write(3), write(4)}, {request(Opcode::atomic_fetch_and_add, 9)}};
    for (const std::vector<WorkRequest>& requests : ways) {
        SCOPED_TRACE(requests.size());
        ASSERT_TRUE(session.arm());
        ASSERT_FALSE(readable(session.event_fd()));
        submit(requests);
        world->step(3);
        EXPECT_TRUE(readable(session.event_fd()));
        const auto completions = world->poll();
        ASSERT_EQ(completions.size(), requests.size());
        EXPECT_TRUE(completions.front().ok());
    }
    EXPECT_EQ(world->worker.counters().applications_woken.value(), ways.size());
}

// Bug found by the simulation: applications slept for ever although their queue was full of unsignaled requests that
// had succeeded long before.
TEST_F(WaitingTest, AnApplicationIsWokenForTheRoomOfUnsignaledRequests) {
    Session& session = world->session();
    const WorkRequest quiet = write(1, {.flags = 0});
    while (try_submit(quiet) == Refusal::none) {
    }
    ASSERT_TRUE(session.arm());
    world->step(20);
    EXPECT_TRUE(readable(session.event_fd()));
    EXPECT_FALSE(session.arm()) << "some were retired";
    EXPECT_TRUE(world->poll().empty());
    EXPECT_EQ(session.try_submit(quiet), Refusal::none);
    world->step(20);
    EXPECT_FALSE(session.wait(0ns) && session.wait(0ns)) << "each is told once";
}

// Bug found by the simulation: applications slept for ever after they had found the submission ring full. Nothing was
// submitted any more, so no completion could wake them.
TEST_F(WaitingTest, AnApplicationDoesNotSleepWhileTheRingIsFull) {
    SteppedWorld::Options small = options();
    small.submission_slots = 2;
    make({}, small);
    Session& session = world->session();
    submit(recv(1));
    submit(recv(1));
    ASSERT_EQ(try_submit(recv(1)), Refusal::submission_ring_full);
    EXPECT_FALSE(session.wait(0ns)) << "it is full";
    EXPECT_FALSE(session.arm()) << "try again";
    ASSERT_EQ(try_submit(recv(1)), Refusal::submission_ring_full);
    world->step(2);
    EXPECT_TRUE(session.wait(0ns));
    EXPECT_FALSE(session.wait(0ns)) << "told once";
    submit(recv(1));
    EXPECT_TRUE(session.arm());
}

TEST_F(WaitingTest, WithoutABellThereIsNoSleep) {
    SteppedWorld spinning;
    EXPECT_FALSE(spinning.worker.fall_asleep(spinning.now));
}

}  // namespace
}  // namespace pollcore::testing
