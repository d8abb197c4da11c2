// Tests the result of Runtime::health() while the control thread or a worker hangs.
#include <algorithm>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "control/runtime_state.hpp"
#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"

namespace pollcore::test {
namespace {

using namespace std::chrono_literals;
using State = ThreadHealth::State;

Config config(const char* idle) {
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    config.devices.push_back({.name = "soft0"});
    config.workers.push_back({.name = "worker0", .core = static_cast<std::uint32_t>(last_cpu())});
    config.workers[0].idle =
        std::string(idle) == "event" ? IdleLadder(IdlePolicy::event) : IdleLadder(IdlePolicy::yield);
    config.log_level = LogLevel::error;
    return config;
}

ThreadHealth find(const Health& health, const std::string& name) {
    const auto found = std::find_if(health.threads.begin(), health.threads.end(),
                                    [&](const ThreadHealth& one) { return one.name == name; });
    return found != health.threads.end() ? *found : ThreadHealth{.name = "there is no " + name};
}

void await(const char* name, State state, const std::function<Health()>& health) {
    while (find(health(), name).state != state) {
        std::this_thread::sleep_for(1ms);
    }
}

TEST(HealthTest, AWorkerThatSpinsWorksAndOneThatSleepsIsAsleep) {
    {
        Runtime runtime(config("yield"));
        const ThreadHealth first = find(runtime.health(), "worker0");
        EXPECT_EQ(first.kind, ThreadHealth::Kind::worker);
        EXPECT_EQ(first.thread_id, runtime.worker_thread_id(0));
        while (find(runtime.health(), "worker0").turns <= first.turns) {
        }
        runtime.stop();
        EXPECT_EQ(find(runtime.health(), "worker0").state, State::not_running);
    }
    Runtime runtime(config("event"));
    await("worker0", State::asleep, [&] { return runtime.health(); });
    await("pollcore-ctl", State::waiting, [&] { return runtime.health(); });
}

TEST(HealthTest, AnswersWhileTheControlThreadHangsAndCallsFailInTime) {
    Config hasty = config("yield");
    hasty.hang_limit = 3s;
    RuntimeState runtime(hasty, host_platform());
    std::latch hangs(1);
    std::latch go(1);
    runtime.post([&] {
        hangs.count_down();
        go.wait();
    });
    hangs.wait();
    await("pollcore-ctl", State::hangs, [&] { return runtime.health(); });
    EXPECT_GE(find(runtime.health(), "pollcore-ctl").busy, kHangsAfter);
    EXPECT_EQ(find(runtime.health(), "worker0").state, State::working) << "it goes on";
    try {
        (void)runtime.create_pd("soft0");
        ADD_FAILURE() << "the control thread hangs";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), ETIMEDOUT) << error.what();
        EXPECT_NE(std::string(error.what()).find("runtime.hang_limit"), std::string::npos) << error.what();
    }
    go.count_down();
    await("pollcore-ctl", State::waiting, [&] { return runtime.health(); });
    runtime.release_pd(runtime.create_pd("soft0"));
}

TEST(HealthTest, AHangIsCountedByWhoSawIt) {
    Runtime runtime(config("yield"));
    EXPECT_EQ(runtime.control_counters().hangs.value(), 0u);
    runtime.count_hang();
    EXPECT_EQ(runtime.control_counters().hangs.value(), 1u);
}

}  // namespace
}  // namespace pollcore::test
