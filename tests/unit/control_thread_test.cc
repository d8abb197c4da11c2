// The control thread: its heartbeat, and what happens to calls while the thread hangs.
#include "control/control_thread.hpp"

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/thread_health.hpp"
#include "control/kernel_place.hpp"
#include "eventually.hpp"
#include "log_capture.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using State = ThreadHealth::State;

// ---- Heartbeat ----

ThreadHealth health_of(const Heartbeat& heartbeat, std::uint64_t now,
                       ThreadHealth::Kind kind = ThreadHealth::Kind::control, double per_ns = 1) {
    return thread_health("thread", kind, heartbeat, now, per_ns);
}
constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(Heartbeat, TellsWhatTheThreadDoesAndForHowLong) {
    Heartbeat heartbeat;
    EXPECT_EQ(health_of(heartbeat, kSecond).state, State::not_running);
    heartbeat.start(17, kSecond);
    EXPECT_EQ(health_of(heartbeat, kSecond + 5).state, State::working);
    EXPECT_EQ(health_of(heartbeat, kSecond + 5).busy, 5ns);
    EXPECT_EQ(health_of(heartbeat, kSecond + 5).thread_id, 17);
    EXPECT_EQ(health_of(heartbeat, 2 * kSecond - 1).state, State::working);
    EXPECT_EQ(health_of(heartbeat, 2 * kSecond).state, State::hangs);
    heartbeat.begin(2 * kSecond);
    EXPECT_EQ(health_of(heartbeat, 2 * kSecond).state, State::working) << "it goes on to the next thing";
    heartbeat.wait();
    EXPECT_EQ(health_of(heartbeat, 100 * kSecond).state, State::waiting);
    EXPECT_EQ(health_of(heartbeat, 100 * kSecond).busy, 0ns);
    EXPECT_EQ(health_of(heartbeat, 100 * kSecond).turns, 1u);
    heartbeat.stop();
    EXPECT_EQ(health_of(heartbeat, 100 * kSecond).state, State::not_running);
}

TEST(Heartbeat, AWaitThatHasALimitIsAHangAfterIt) {
    Heartbeat heartbeat;
    heartbeat.start(1, kSecond);
    heartbeat.wait(3 * kSecond);
    EXPECT_EQ(health_of(heartbeat, 3 * kSecond - 1).state, State::waiting);
    EXPECT_EQ(health_of(heartbeat, 3 * kSecond).state, State::working);
    EXPECT_EQ(health_of(heartbeat, 4 * kSecond).state, State::hangs);
}

TEST(Heartbeat, AWorkersIsInItsCycles) {
    Heartbeat heartbeat;
    constexpr auto kWorker = ThreadHealth::Kind::worker;
    heartbeat.start(1, 3000);
    EXPECT_EQ(health_of(heartbeat, 6000, kWorker, 3).busy, 1000ns);
    EXPECT_EQ(health_of(heartbeat, 2000, kWorker, 3).state, State::working) << "it began after the clock was read";
    EXPECT_EQ(health_of(heartbeat, 2000, kWorker, 3).busy, 0ns);
    heartbeat.wait();
    EXPECT_EQ(health_of(heartbeat, 6000, kWorker, 3).state, State::asleep);
}

// ---- The thread ----

class ControlThreadTest : public testing::Test {
protected:
    [[nodiscard]] ThreadHealth health() const {
        return thread_health("control", ThreadHealth::Kind::control, thread_->heartbeat(),
                             steady_ns(std::chrono::steady_clock::now()));
    }
    void start(std::chrono::milliseconds hang_limit) {
        thread_ = std::make_unique<ControlThread>("control", std::vector<int>{}, hang_limit);
    }
    // Makes the thread hang until go() is called. Returns when the thread sleeps in the kernel.
    void hang() {
        std::latch hangs(1);
        thread_->post_always([this, &hangs] {
            hangs.count_down();
            go_.wait();
        });
        hangs.wait();
        const auto place = [&] { return kernel_place(health().thread_id); };
        ASSERT_TRUE(test::eventually([&] { return place().find("futex (") != std::string::npos; })) << place();
    }
    void go() { go_.count_down(); }

    std::latch go_{1};
    std::unique_ptr<ControlThread> thread_;
};

TEST_F(ControlThreadTest, WaitsWhileThereIsNothingAndCountsItsJobs) {
    start(60s);
    EXPECT_EQ(thread_->run([] { return 7; }), 7);
    while (health().state != State::waiting) {  // run() returns a moment before the thread waits again
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_GE(health().turns, 1u);
    EXPECT_NE(health().thread_id, 0);
}

TEST_F(ControlThreadTest, AJobThatThrowsIsInTheLogAndTheNextRuns) {
    const test::LogCapture log(LogLevel::error);
    start(60s);
    thread_->post_always([] { throw std::bad_alloc(); });
    EXPECT_EQ(thread_->run([] { return 7; }), 7);
    EXPECT_EQ(test::occurrences(log.text(), "control: std::bad_alloc"), 1u);
}

TEST_F(ControlThreadTest, AJobThatDoesNotEndMakesItHang) {
    start(60s);
    hang();
    for (State state = health().state; state != State::hangs; state = health().state) {
        EXPECT_EQ(state, State::working);
        std::this_thread::sleep_for(10ms);
    }
    go();
    while (health().state != State::waiting) {
        std::this_thread::sleep_for(1ms);
    }
}

TEST_F(ControlThreadTest, ACallThatItDoesNotBeginWithIsWithdrawn) {
    start(50ms);
    hang();
    std::atomic<int> ran{0};
    try {
        thread_->run([&] { ++ran; });
        FAIL() << "the control thread hangs, and has run it";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), ETIMEDOUT) << error.what();
        EXPECT_NE(std::string(error.what()).find("system call futex"), std::string::npos) << error.what();
    }
    go();
    thread_->run([] {}, Executor::Patience::unlimited);
    EXPECT_EQ(ran, 0) << "what it used is gone";
}

TEST_F(ControlThreadTest, ACallThatHasBegunIsWaitedFor) {
    start(20ms);
    std::atomic<bool> returned{false};
    std::latch begun(1);
    std::thread caller([&] {
        const auto call = [&] {
            begun.count_down();
            go_.wait();
            return 7;
        };
        for (;;) {
            try {
                EXPECT_EQ(thread_->run(call), 7);
                break;
            } catch (const Error&) {
                // The control thread did not begin this call in time, and will not run it. Try again.
            }
        }
        returned = true;
    });
    begun.wait();
    EXPECT_THROW(thread_->run([] {}), Error) << "this one's time is over";
    EXPECT_THROW(thread_->run([] {}), Error);
    EXPECT_FALSE(returned);
    go();
    caller.join();
    EXPECT_TRUE(returned);
}

TEST_F(ControlThreadTest, ACallWithoutALimitWaits) {
    start(1ms);
    hang();
    auto call = std::async(std::launch::async,
                           [this] { return thread_->run([] { return 7; }, Executor::Patience::unlimited); });
    EXPECT_THROW(thread_->run([] {}), Error);
    go();
    EXPECT_EQ(call.get(), 7);
}

TEST_F(ControlThreadTest, AJobThatSaysThatItMovesDoesNotHang) {
    start(60s);
    thread_->run([this] {
        while (health().state != State::hangs) {
            std::this_thread::sleep_for(10ms);
        }
        const auto gives_up = std::chrono::steady_clock::now() + 60s;
        do {  // repeated, because the machine may stop this thread for as long as the hang limit
            ASSERT_LT(std::chrono::steady_clock::now(), gives_up) << "it is counted from the beat";
            thread_->beat(steady_ns(std::chrono::steady_clock::now()));
        } while (health().state == State::hangs);
    });
}

}  // namespace
}  // namespace pollcore
