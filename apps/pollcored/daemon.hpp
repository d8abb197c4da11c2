// The running daemon: runtime, services, and the loop that watches over them until a signal ends it.
//
// Thread safety: all on the main thread, with the signals blocked (signals.hpp).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "backtrace.hpp"
#include "notifier.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "service.hpp"
#include "watchdog.hpp"

namespace pollcore::daemon {

class Daemon {
public:
    /// Starts the runtime and makes the services. Throws Error. `read_again` reads the configuration again; it throws
    /// ConfigError.
    Daemon(const Config& config, std::function<Config()> read_again);
    ~Daemon();

    /// Serves until a signal or a broken service ends it. Returns the exit code (daemon_exit_code.hpp).
    [[nodiscard]] int run();

private:
    /// Until the end is asked for; false when a service broke down.
    [[nodiscard]] bool serve();
    /// Of all threads that the watchdog looks at, which calls this on its own thread.
    [[nodiscard]] Health health() const;
    /// Applies what can be applied, and names what cannot.
    void reload();
    void end_service(const ServiceConfig& config);
    void begin_service(const ServiceConfig& config);
    /// Drains and closes while a second signal is listened for. False when something was cut short.
    [[nodiscard]] bool shut_down();
    /// On a thread of its own, since closing blocks.
    [[nodiscard]] bool drain_and_stop();
    [[nodiscard]] std::chrono::microseconds shutdown_limit() const noexcept;

    Config config_;
    const std::function<Config()> read_again_;
    Backtrace backtrace_;  // before the runtime's threads exist
    Runtime runtime_;
    std::unique_ptr<AttachServer> attach_;  // null: nobody may
    std::vector<std::unique_ptr<Service>> services_;
    Notifier notifier_;
    std::unique_ptr<Watchdog> watchdog_;  // while run() runs
};

}  // namespace pollcore::daemon
