// A device that is unplugged while its worker sleeps.
#include <thread>

#include "removal_fixture.hpp"

namespace pollcore::testing {
namespace {

using namespace std::chrono_literals;

/// In these tests the model of the HCA runs in its own thread. Otherwise it runs inside polls, and a sleeping worker
/// does not poll.
class RemovalAsleep : public Removal {
protected:
    RemovalAsleep() : Removal(IdlePolicy::event) {}
    static void SetUpTestSuite() { Model::set_pace("thread"); }
    static void TearDownTestSuite() { Model::set_pace(pace()); }

    // The worker may still look a few times at completions that the lost device leaves behind, but must fall asleep.
    void expect_asleep() {
        const WorkerCounters& counters = runtime.worker_counters(0);
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        for (;;) {
            const std::uint64_t steps = counters.steps.value();
            std::this_thread::sleep_for(50ms);
            if (counters.asleep.value() == 1 && counters.steps.value() == steps) {
                return;
            }
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the worker does not come to rest";
        }
    }
};

TEST_F(RemovalAsleep, SleepsOnWithTheQueuePairsOfTheLostDevice) {
    expect_traffic(first);
    submit(recv(first, 1));
    expect_asleep();
    lose();
    expect_removed(await(1));
    expect_asleep();
    expect_traffic(second);
    expect_asleep();
    EXPECT_TRUE(first.a.close());
    EXPECT_TRUE(first.b.close());
    expect_traffic(second);
    expect_asleep();
    expect_others_go_on();
}

TEST_F(RemovalAsleep, SleepsOnWithACompletionQueueThatHasNoQueuePairs) {
    EXPECT_TRUE(first.a.close());
    EXPECT_TRUE(first.b.close());
    expect_asleep();
    lose();
    expect_asleep();
    expect_traffic(second);
    expect_asleep();
    expect_others_go_on();
}

TEST_F(RemovalAsleep, WakesAnApplicationThatSleeps) {
    TestSession sleeper = runtime.open_session({.events = true});
    QueuePairOptions options = shape("net0");
    options.shares[0].session = &sleeper;
    QueuePair qp = runtime.create_queue_pair(options);
    WorkRequest receive = recv(first, 1);
    receive.qp = qp.handle();
    ASSERT_EQ(sleeper.try_submit(receive), Refusal::none);
    expect_asleep();
    std::thread unplugging([&] {
        std::this_thread::sleep_for(20ms);
        unplug();
    });
    EXPECT_TRUE(sleeper.wait(kPatience));
    unplugging.join();
    expect_removed(await(sleeper, 1));
    expect_told();
    EXPECT_TRUE(qp.close());
    expect_others_go_on();
}

}  // namespace
}  // namespace pollcore::testing
