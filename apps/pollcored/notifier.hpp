// What the daemon tells the service manager (sd_notify(3)), and whether its watchdog deserves to be fed.
//
// Thread safety: one thread, the daemon's main thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pollcore::daemon {

/// Do all workers move, or sleep by their own word? A worker that takes no step within a watch period hangs in its provider
/// or has lost its core for that long, which is what a watchdog is for.
class ProgressCheck {
public:
    struct Progress {
        std::uint64_t steps = 0;
        bool asleep = false;
    };
    /// Takes how far each worker is, in the same order each time. Returns the first worker that made no step since the call
    /// before and does not sleep; nothing when there is none, or at the first call.
    [[nodiscard]] std::optional<std::size_t> stuck_worker(const std::vector<Progress>& workers);

private:
    std::vector<Progress> seen_;
};

class Notifier {
public:
    /// Reads NOTIFY_SOCKET and WATCHDOG_USEC. Without a service manager all calls do nothing.
    Notifier();

    void ready(const std::string& status);
    /// ready() follows.
    void reloading();
    void status(const std::string& status);
    /// `limit`: how long the rest may take before the manager may lose patience.
    void stopping(const std::string& status, std::chrono::microseconds limit);
    void feed_watchdog();

    /// How often the watchdog wants to be fed: half of what the manager allows. Nothing: there is none.
    [[nodiscard]] std::optional<std::chrono::microseconds> watchdog_interval() const noexcept {
        return interval_;
    }

private:
    void send(const std::string& state);

    std::optional<std::chrono::microseconds> interval_;
    std::string last_status_;
    bool told_failure_ = false;
};

}  // namespace pollcore::daemon
