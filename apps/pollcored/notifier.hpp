// Sends the daemon's messages to the service manager (sd_notify(3)).
//
// Thread safety: feed_watchdog() and watchdog_interval() from any thread, all other functions from the main thread
// only.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

namespace pollcore::daemon {

class Notifier {
public:
    /// Reads WATCHDOG_USEC and WATCHDOG_PID. Each message reads NOTIFY_SOCKET; without this variable nothing is sent.
    Notifier();

    void ready(const std::string& status);
    /// Call before a reload, and ready() after it.
    void reloading();
    void status(const std::string& status);
    /// `limit` is the time that the shutdown may take before the manager kills the daemon.
    void stopping(const std::string& status, std::chrono::microseconds limit);
    void feed_watchdog();

    /// How often the watchdog has to be fed: half of the manager's limit. nullopt if there is no watchdog.
    [[nodiscard]] std::optional<std::chrono::microseconds> watchdog_interval() const noexcept { return interval_; }

private:
    void send(const std::string& state);

    std::optional<std::chrono::microseconds> interval_;
    std::string last_status_;
    std::atomic<bool> told_failure_{false};
};

}  // namespace pollcore::daemon
