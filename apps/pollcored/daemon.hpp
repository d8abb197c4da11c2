// The running daemon: the runtime, the services, and a loop that watches the services until a signal ends the daemon.
//
// Thread safety: the main thread calls the public functions, with the signals blocked (signals.hpp).
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
    /// Starts the runtime and makes the services. Throws Error. reload() calls `read_again`, which reads the
    /// configuration again and may throw ConfigError.
    Daemon(const Config& config, std::function<Config()> read_again);
    ~Daemon();

    /// Serves until SIGTERM or SIGINT comes, or a service breaks down. Returns the exit code (daemon_exit_code.hpp).
    [[nodiscard]] int run();

private:
    /// Returns true when a signal asks the daemon to stop, and false when a service has broken down.
    [[nodiscard]] bool serve();
    /// Returns the health of all threads that the watchdog checks. Called on the watchdog's thread.
    [[nodiscard]] Health health() const;
    /// Applies the changed keys that can change while the daemon runs. Logs the keys that need a restart.
    void reload();
    void end_service(const ServiceConfig& config);
    void begin_service(const ServiceConfig& config);
    /// Drains and closes, and ends the process at once on a second SIGTERM or SIGINT. Returns false when work was cut
    /// short.
    [[nodiscard]] bool shut_down();
    /// Runs on its own thread, because closing blocks.
    [[nodiscard]] bool drain_and_stop();
    [[nodiscard]] std::chrono::microseconds shutdown_limit() const noexcept;

    Config config_;
    const std::function<Config()> read_again_;
    Backtrace backtrace_;  // before runtime_: its threads inherit the mask that this sets
    Runtime runtime_;
    std::unique_ptr<AttachServer> attach_;  // null if no process may attach
    std::vector<std::unique_ptr<Service>> services_;
    Notifier notifier_;
    std::unique_ptr<Watchdog> watchdog_;  // null until run() has begun
};

}  // namespace pollcore::daemon
