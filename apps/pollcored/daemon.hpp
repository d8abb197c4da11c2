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
    /// Returns when a signal asks for the end. False when a service broke down.
    [[nodiscard]] bool serve();
    /// The health of all threads that the watchdog looks at. Called on the watchdog's thread.
    [[nodiscard]] Health health() const;
    /// Applies changed keys that can be applied, and names the others in the log.
    void reload();
    void end_service(const ServiceConfig& config);
    void begin_service(const ServiceConfig& config);
    /// Drains and closes while a second signal is listened for. False when something was cut short.
    [[nodiscard]] bool shut_down();
    /// Runs on a thread of its own, since closing blocks.
    [[nodiscard]] bool drain_and_stop();
    [[nodiscard]] std::chrono::microseconds shutdown_limit() const noexcept;

    Config config_;
    const std::function<Config()> read_again_;
    Backtrace backtrace_;  // before runtime_, whose threads inherit its signal mask
    Runtime runtime_;
    std::unique_ptr<AttachServer> attach_;  // null: nobody may attach
    std::vector<std::unique_ptr<Service>> services_;
    Notifier notifier_;
    std::unique_ptr<Watchdog> watchdog_;  // null unless run() runs
};

}  // namespace pollcore::daemon
