// The parts of pollcored that need no daemon: when the watchdog is fed, and where a hanging thread is stuck.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "control/kernel_place.hpp"
#include "pollcored/backtrace.hpp"
#include "pollcored/hang_check.hpp"
#include "pollcored/notifier.hpp"
#include "pollcored/watchdog.hpp"
#include "system/daemon_process.hpp"

namespace pollcore::daemon {
namespace {

using namespace std::chrono_literals;
using Kind = ThreadHealth::Kind;
using State = ThreadHealth::State;

// ---- HangCheck ----

ThreadHealth thread(const std::string& name, Kind kind, std::chrono::nanoseconds busy) {
    return {.name = name, .kind = kind, .state = busy >= kHangsAfter ? State::hangs : State::working, .busy = busy};
}
ThreadHealth worker(std::chrono::nanoseconds busy, const std::string& name = "worker0") {
    return thread(name, Kind::worker, busy);
}
ThreadHealth control(std::chrono::nanoseconds busy) {
    return thread("pollcore-ctl", Kind::control, busy);
}

std::vector<std::string> names(const std::vector<ThreadHealth>& threads) {
    std::vector<std::string> names;
    for (const ThreadHealth& one : threads) {
        names.push_back(one.name);
    }
    return names;
}
using Names = std::vector<std::string>;

TEST(HangCheck, FeedsWhileThreadsMove) {
    HangCheck check({.worker = 5s, .other = 60s});
    for (int i = 0; i < 3; ++i) {
        const HangCheck::Findings findings = check.check({{worker(2ms), control(999ms)}});
        EXPECT_TRUE(findings.feed);
        EXPECT_TRUE(findings.begun.empty() && findings.starving.empty() && findings.over.empty());
    }
    EXPECT_TRUE(check.check({}).feed);
}

TEST(HangCheck, AWorkerIsToldOfAtOnceAndStarvesTheWatchdogAtItsLimit) {
    HangCheck check({.worker = 5s, .other = 60s});
    HangCheck::Findings findings = check.check({{worker(1ms, "a"), worker(1s, "b")}});
    EXPECT_EQ(names(findings.begun), Names{"b"});
    EXPECT_TRUE(findings.feed);

    findings = check.check({{worker(1ms, "a"), worker(4s, "b")}});
    EXPECT_TRUE(findings.begun.empty()) << "told once";
    EXPECT_TRUE(findings.feed);

    findings = check.check({{worker(1ms, "a"), worker(5s, "b")}});
    EXPECT_EQ(names(findings.starving), Names{"b"});
    EXPECT_FALSE(findings.feed);
    findings = check.check({{worker(1ms, "a"), worker(6s, "b")}});
    EXPECT_TRUE(findings.starving.empty()) << "told once";
    EXPECT_FALSE(findings.feed);

    findings = check.check({{worker(1ms, "a"), worker(1ms, "b")}});
    ASSERT_EQ(names(findings.over), Names{"b"});
    EXPECT_EQ(findings.over[0].busy, 6s);
    EXPECT_TRUE(findings.feed) << "it moves again";
}

TEST(HangCheck, AnotherThreadHasItsOwnLimit) {
    HangCheck check({.worker = 5s, .other = 60s});
    EXPECT_EQ(names(check.check({{control(1s)}}).begun), Names{"pollcore-ctl"});
    EXPECT_TRUE(check.check({{control(59s)}}).feed);
    EXPECT_FALSE(check.check({{control(60s)}}).feed);
    EXPECT_TRUE(check.check({{control(1ms)}}).feed);
}

TEST(HangCheck, AHangInSomethingElseIsAnotherHang) {
    HangCheck check({.worker = 5s, .other = 60s});
    (void)check.check({{control(10s)}});
    const HangCheck::Findings findings = check.check({{control(2s)}});
    EXPECT_EQ(names(findings.over), Names{"pollcore-ctl"});
    EXPECT_EQ(names(findings.begun), Names{"pollcore-ctl"});
}

TEST(HangCheck, AWorkerMayBeNamedLikeAnotherThread) {
    HangCheck check({.worker = 5s, .other = 60s});
    EXPECT_EQ(check.check({{worker(2s, "pollcore-ctl"), control(1ms)}}).begun.size(), 1u);
    const HangCheck::Findings findings = check.check({{worker(3s, "pollcore-ctl"), control(1ms)}});
    EXPECT_TRUE(findings.begun.empty() && findings.over.empty());
}

TEST(HangCheck, WhoWaitsOrSleepsDoesNotHang) {
    HangCheck check({.worker = 5s, .other = 60s});
    for (const State state : {State::asleep, State::waiting, State::not_running}) {
        const HangCheck::Findings findings = check.check({{{.name = "worker0", .state = state, .busy = 100s}}});
        EXPECT_TRUE(findings.feed);
        EXPECT_TRUE(findings.begun.empty());
    }
}

TEST(HangCheck, AShortLimitIsToldOfNoLaterThanItStarves) {
    HangCheck check({.worker = 200ms, .other = 300ms});
    const HangCheck::Findings findings = check.check({{worker(200ms), control(200ms)}});
    EXPECT_EQ(names(findings.begun), Names{"worker0"});
    EXPECT_EQ(names(findings.starving), Names{"worker0"});
    EXPECT_FALSE(findings.feed);
}

// ---- Watchdog ----

TEST(Watchdog, IsFedTwiceInItsTimeWhichIsWithinFewLooks) {
    test::TemporaryDirectory directory;
    test::NotifySocket manager(directory.path() / "notify.sock");
    ::setenv("NOTIFY_SOCKET", manager.path().c_str(), 1);
    ::setenv("WATCHDOG_USEC", "400000", 1);
    Notifier notifier;
    EXPECT_EQ(notifier.watchdog_interval(), 200ms) << "half of what the manager allows";
    Backtrace backtrace;
    std::vector<int> meals;  // the number of looks so far, at each feeding
    std::promise<void> enough;
    int looks = 0;
    {
        // One thread both feeds and looks. It looks at least four times in each interval.
        const Watchdog watchdog(notifier, backtrace, 60s,
                                {.look = [&]() -> Health {
                                     ++looks;
                                     while (const auto message = manager.receive(0ms)) {
                                         meals.push_back(looks);
                                         if (meals.size() == 4) {
                                             enough.set_value();
                                         }
                                     }
                                     return {};
                                 },
                                 .count_hang = [] {}});
        EXPECT_EQ(enough.get_future().wait_for(test::kPatience), std::future_status::ready);
    }
    for (std::size_t i = 1; i < meals.size(); ++i) {
        EXPECT_LE(meals[i] - meals[i - 1], 4) << "meal " << i;
    }
    ::unsetenv("NOTIFY_SOCKET");
    ::unsetenv("WATCHDOG_USEC");
}

// ---- Backtrace, and the place in the kernel ----

class HangingThread : public testing::Test {
protected:
    // Starts a thread that hangs. If `in_poll` is true, it waits in poll(2) until the end of the test, and then calls
    // read(2). If not, it waits in read(2) all the time. If `blocked` is true, it blocks all signals.
    void hang(bool in_poll, bool blocked = false) {
        std::promise<pid_t> ready;
        thread_ = std::thread([&ready, this, in_poll, blocked] {
            if (blocked) {
                sigset_t all;
                sigfillset(&all);
                pthread_sigmask(SIG_SETMASK, &all, nullptr);
            }
            ready.set_value(::gettid());
            pollfd readable{.fd = pipe_[0], .events = POLLIN, .revents = 0};
            // A signal interrupts poll(2), even if its handler has SA_RESTART.
            while (in_poll && ::poll(&readable, 1, -1) != 1) {
            }
            char byte = 0;
            read_ = ::read(pipe_[0], &byte, 1);
        });
        id_ = ready.get_future().get();
        await_in(in_poll ? "poll" : "read");
    }
    void await_in(const std::string& call) const {
        while (kernel_place(id_).find(call + " (") == std::string::npos) {
            std::this_thread::sleep_for(1ms);
        }
    }
    void SetUp() override { ASSERT_EQ(::pipe(pipe_), 0); }
    void TearDown() override {
        ASSERT_EQ(::write(pipe_[1], "x", 1), 1);
        thread_.join();
        EXPECT_EQ(read_, 1) << "the signal has ended its system call";
        ::close(pipe_[0]);
        ::close(pipe_[1]);
    }

    Backtrace backtrace_;
    int pipe_[2] = {-1, -1};
    std::thread thread_;
    pid_t id_ = 0;
    std::atomic<ssize_t> read_{0};
};

TEST_F(HangingThread, TellsItsCallStackEachTime) {
    hang(true);
    for (int i = 0; i < 2; ++i) {
        const std::vector<std::string> lines = backtrace_.of(id_, 10s);
        ASSERT_GE(lines.size(), 2u) << lines.front();
        const auto has = [&](const std::string& text) {
            return std::any_of(lines.begin(), lines.end(),
                               [&](const std::string& line) { return line.find(text) != std::string::npos; });
        };
        EXPECT_TRUE(has("poll")) << testing::PrintToString(lines);
        EXPECT_TRUE(has("libc.so")) << testing::PrintToString(lines);
        await_in("poll");
    }
}

TEST_F(HangingThread, GoesOnInASystemCallThatCanBeRestarted) {
    hang(false);
    // Under the thread sanitizer the handler runs only after the thread has left read(2), so the result is not checked.
    // The signal arrives in any case.
    (void)backtrace_.of(id_, 200ms);
    await_in("read");
    EXPECT_EQ(read_, 0);
}

TEST_F(HangingThread, OneThatTakesNoSignalIsSaidToBeThat) {
    hang(true, true);
    const std::vector<std::string> lines = backtrace_.of(id_, 20ms);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find("does not take the signal"), std::string::npos) << lines[0];
    const std::vector<std::string> gone = backtrace_.of(1 << 30, 20ms);
    ASSERT_EQ(gone.size(), 1u);
    EXPECT_NE(gone[0].find("cannot signal"), std::string::npos) << gone[0];
}

TEST(KernelPlace, OfAThreadThatIsGoneIsNotKnown) {
    EXPECT_NE(kernel_place(1 << 30).find("cannot be read"), std::string::npos) << kernel_place(1 << 30);
}

}  // namespace
}  // namespace pollcore::daemon
