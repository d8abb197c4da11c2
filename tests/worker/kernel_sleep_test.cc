// An idle thread sleeps in the kernel until an event wakes it. If nothing is due, the thread sets no timer, because a
// timer would hide a missing wake-up.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "control/host_idle_ways.hpp"
#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

using namespace std::chrono_literals;

// The timeouts with which this program called ppoll(2); nullopt means no timeout.
std::vector<std::optional<std::chrono::nanoseconds>> sleeps;
// If set, called in place of ppoll(2).
std::function<void()> instead_of_sleeping;

class KernelSleepTest : public WorkerFixture {
protected:
    KernelSleepTest() {
        make({}, {.sleeps = true});
        sleeps.clear();
    }
    ~KernelSleepTest() override { instead_of_sleeping = nullptr; }
    [[nodiscard]] bool woken() {
        pollfd readable{.fd = world->session().event_fd(), .events = POLLIN, .revents = 0};
        return ::poll(&readable, 1, 0) == 1;
    }
    using Sleeps = std::vector<std::optional<std::chrono::nanoseconds>>;
};

TEST_F(KernelSleepTest, AWorkersHasATimerOnlyWhereSomethingIsDue) {
    HostIdleWays ways;
    instead_of_sleeping = [] {};
    ways.wait({}, CompletionChannel::kNever, CompletionChannel::kNever);
    EXPECT_EQ(sleeps, Sleeps{std::nullopt});
    constexpr std::chrono::nanoseconds kMost = 50us;
    const auto in_an_hour =
        static_cast<std::uint64_t>((std::chrono::steady_clock::now() + 1h).time_since_epoch().count());
    ways.wait({}, CompletionChannel::kNever, kMost.count());
    ways.wait({}, in_an_hour, kMost.count());
    ways.wait({}, 1, CompletionChannel::kNever);
    EXPECT_EQ(sleeps, (Sleeps{std::nullopt, kMost, kMost, 0ns}));
}

TEST_F(KernelSleepTest, AnApplicationsEndsByItsWakeUpAlone) {
    submit(write(1));
    instead_of_sleeping = [&] {
        EXPECT_FALSE(woken());
        world->step(3);
        EXPECT_TRUE(woken());
    };
    EXPECT_TRUE(world->session().wait(std::chrono::nanoseconds::max()));
    EXPECT_EQ(sleeps, Sleeps{std::nullopt});
    EXPECT_EQ(world->poll().size(), 1u);
}

TEST_F(KernelSleepTest, AnApplicationsHasTheTimerThatItAskedFor) {
    submit(write(1));
    instead_of_sleeping = [&] { world->step(3); };
    EXPECT_TRUE(world->session().wait(1h));
    ASSERT_EQ(sleeps.size(), 1u);
    ASSERT_TRUE(sleeps[0].has_value());
    EXPECT_GT(*sleeps[0], 0ns);
    EXPECT_LE(*sleeps[0], 1h);
}

}  // namespace
}  // namespace pollcore::testing

extern "C" int ppoll(pollfd* fds, nfds_t n, const timespec* limit, const sigset_t* signals) {
    namespace testing = pollcore::testing;
    testing::sleeps.push_back(limit == nullptr ? std::nullopt
                                               : std::optional(std::chrono::seconds(limit->tv_sec) +
                                                               std::chrono::nanoseconds(limit->tv_nsec)));
    if (testing::instead_of_sleeping) {
        testing::instead_of_sleeping();
        return 0;
    }
    timespec left = limit != nullptr ? *limit : timespec{};  // a copy, because the kernel writes to it
    return static_cast<int>(::syscall(SYS_ppoll, fds, n, limit != nullptr ? &left : nullptr, signals, _NSIG / 8));
}
