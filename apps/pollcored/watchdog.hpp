// Looks at the daemon's threads, counts and reports those that hang, and feeds the service manager's watchdog for as
// long as none hangs for too long. Its thread does nothing else, so that no other work of the daemon holds it up.
// Without a service manager it only looks, counts and reports.
//
// Thread safety: the constructor, stopping() and the destructor by one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "hang_check.hpp"
#include "hang_report.hpp"
#include "notifier.hpp"

namespace pollcore::daemon {

class Watchdog {
public:
    using Clock = std::chrono::steady_clock;

    /// Both are called on the watchdog's thread, and must not wait.
    struct Ways {
        std::function<Health()> look;
        std::function<void()> count_hang;
    };
    /// `hang_limit`: how long threads other than workers may hang before the watchdog is starved. The arguments that
    /// it refers to must outlive this.
    Watchdog(Notifier& notifier, Backtrace& backtrace, std::chrono::milliseconds hang_limit, Ways ways);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    /// The daemon's threads stop from here on, and looking at them tells nothing. Feeds the watchdog until `deadline`.
    /// After this returns the watchdog no longer calls `look`.
    void stopping(Clock::time_point deadline);

private:
    void loop();
    /// Looks at all threads. Returns whether the watchdog deserves to be fed. Call with mutex_ held.
    [[nodiscard]] bool look();

    Notifier& notifier_;
    const Ways ways_;
    const std::optional<std::chrono::nanoseconds> interval_;
    HangCheck check_;
    HangReport report_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Clock::time_point> deadline_;  // set: the daemon stops
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace pollcore::daemon
