#include "notifier.hpp"

#include <cstdint>
#include <cstring>
#include <ctime>

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

#include "base/log.hpp"

namespace pollcore::daemon {

Notifier::Notifier() {
    std::uint64_t allowed_us = 0;
    const int enabled = sd_watchdog_enabled(0, &allowed_us);
    if (enabled > 0) {
        interval_ = std::chrono::microseconds(allowed_us) / 2;
    } else if (enabled < 0) {
        log_warning("no watchdog: WATCHDOG_USEC or WATCHDOG_PID in the environment cannot be used: {}",
                    std::strerror(-enabled));
    }
}

void Notifier::ready(const std::string& status) {
    last_status_ = status;
    send(fmt::format("READY=1\nSTATUS={}", status));
}

void Notifier::reloading() {
    timespec now{};
    (void)::clock_gettime(CLOCK_MONOTONIC, &now);
    send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}",
                     std::uint64_t(now.tv_sec) * 1'000'000 + std::uint64_t(now.tv_nsec) / 1000));
}

void Notifier::status(const std::string& status) {
    if (status != last_status_) {
        last_status_ = status;
        send(fmt::format("STATUS={}", status));
    }
}

void Notifier::stopping(const std::string& status, std::chrono::microseconds limit) {
    last_status_ = status;
    send(fmt::format("STOPPING=1\nSTATUS={}\nEXTEND_TIMEOUT_USEC={}", status, limit.count()));
}

void Notifier::feed_watchdog() {
    send("WATCHDOG=1");
}

void Notifier::send(const std::string& state) {
    const int sent = sd_notify(0, state.c_str());
    // Logged only once: a manager that is gone stays gone, and each feeding of the watchdog would repeat the line.
    if (sent < 0 && !told_failure_.exchange(true)) {
        log_warning("cannot notify the service manager at NOTIFY_SOCKET: {}; going on without", std::strerror(-sent));
    }
}

}  // namespace pollcore::daemon
