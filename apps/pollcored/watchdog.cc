#include "watchdog.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/quiet_thread.hpp"

namespace pollcore::daemon {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kLookEvery = 250ms;
// The limit of a worker if there is no service manager's watchdog. It is half of WatchdogSec in the shipped unit.
constexpr std::chrono::nanoseconds kWorkerLimit = 5s;

}  // namespace

Watchdog::Watchdog(Notifier& notifier, Backtrace& backtrace, std::chrono::milliseconds hang_limit, Ways ways)
    : notifier_(notifier),
      ways_(std::move(ways)),
      interval_(notifier.watchdog_interval()),
      check_({.worker = interval_.value_or(kWorkerLimit), .other = hang_limit}),
      report_(backtrace),
      thread_(start_quiet_thread([this] {
          pthread_setname_np(pthread_self(), "pollcore-watch");
          loop();
      })) {}

Watchdog::~Watchdog() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void Watchdog::stopping(Clock::time_point deadline) {
    const std::lock_guard lock(mutex_);
    deadline_ = deadline;
}

bool Watchdog::look() {
    const HangCheck::Findings findings = check_.check(ways_.look());
    for (std::size_t i = 0; i < findings.begun.size(); ++i) {
        ways_.count_hang();
    }
    report_.tell(findings, interval_.has_value());
    return findings.feed;
}

void Watchdog::loop() {
    // Short enough to notice a worker that hangs before the watchdog is fed the next time.
    const auto every = interval_ ? std::min(kLookEvery, *interval_ / 4) : kLookEvery;
    Clock::time_point next_meal{};
    std::unique_lock lock(mutex_);
    while (!ending_) {
        const auto now = Clock::now();
        const bool deserved = deadline_ ? now < *deadline_ : look();
        if (interval_ && deserved && now >= next_meal) {
            lock.unlock();  // feeding may block if the service manager reads nothing; stopping() must not wait for it
            notifier_.feed_watchdog();
            lock.lock();
            next_meal = now + *interval_ - *interval_ / 8;  // an eighth early, because the loop's turns are not exact
        }
        changed_.wait_for(lock, every, [this] { return ending_; });
    }
}

}  // namespace pollcore::daemon
