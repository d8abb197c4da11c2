// Checks the daemon's threads, counts and reports the threads that hang, and feeds the service manager's watchdog as
// long as no thread hangs for too long. All this runs on its own thread, so that no other work of the daemon delays it.
// Without a service manager the watchdog only checks, counts and reports.
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

    /// Functions that the watchdog's thread calls. They must not wait.
    struct Ways {
        std::function<Health()> look;      ///< returns the health of all threads
        std::function<void()> count_hang;  ///< counts one hang
    };
    /// `hang_limit`: how long threads other than workers may hang before the watchdog is no longer fed. `notifier` and
    /// `backtrace` must outlive this object.
    Watchdog(Notifier& notifier, Backtrace& backtrace, std::chrono::milliseconds hang_limit, Ways ways);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    /// Call when the daemon begins to stop. The threads end then, so they are not checked: until `deadline` the
    /// watchdog is fed without checks. `look` is not called after stopping() has returned.
    void stopping(Clock::time_point deadline);

private:
    void loop();
    /// Checks all threads. Returns whether the watchdog may be fed. Call with mutex_ held.
    [[nodiscard]] bool look();

    Notifier& notifier_;
    const Ways ways_;
    const std::optional<std::chrono::nanoseconds> interval_;
    HangCheck check_;
    HangReport report_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Clock::time_point> deadline_;  // set by stopping()
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace pollcore::daemon
