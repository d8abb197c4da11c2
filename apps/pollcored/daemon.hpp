// The running daemon: the runtime, the services, and a loop that watches the services and carries out orders, until a
// signal or an operator ends the daemon.
//
// Thread safety: the main thread calls the public functions, with the signals blocked (signals.hpp). The control
// socket's thread and the watchdog's call those private functions that say so.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backtrace.hpp"
#include "control_commands.hpp"
#include "control_listing.hpp"
#include "control_socket.hpp"
#include "main_inbox.hpp"
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
    enum class State : std::uint8_t { serving, draining, stopping };

    void open_control();
    [[nodiscard]] std::string status() const;
    /// Returns true when the daemon is asked to stop, and false when a service has broken down.
    [[nodiscard]] bool serve();
    /// Returns true if the daemon has to stop.
    [[nodiscard]] bool carry_out(const Order& order);
    /// Answers the operator, if it was one who asked.
    static void conclude(const Order& order, const ControlJson& result);
    void drain(const Order& order, bool yes);
    /// Returns the health of all threads that the watchdog checks. Called on the watchdog's and the control socket's
    /// threads.
    [[nodiscard]] Health health() const;
    /// Called on the control socket's thread.
    [[nodiscard]] std::vector<ServiceFigures> service_figures() const;
    /// Applies the changed keys that can change while the daemon runs. Logs the keys that need a restart.
    void reload(const Order& order);
    void end_service(const ServiceConfig& config);
    /// Throws Error.
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
    // Before runtime_, which may still have jobs of theirs. These and control_ are null if there is no control socket.
    std::unique_ptr<ControlCommands> commands_;
    Runtime runtime_;
    std::unique_ptr<AttachServer> attach_;  // null if no process may attach
    std::vector<std::unique_ptr<Service>> services_;
    // Held by the main thread while it changes services_ or config_.services, and by other threads while they read.
    mutable std::mutex services_mutex_;
    std::atomic<State> state_{State::serving};
    MainInbox inbox_;
    Notifier notifier_;
    std::unique_ptr<ControlSocket> control_;  // after commands_, which its thread uses
    std::unique_ptr<Watchdog> watchdog_;      // null until run() has begun
};

}  // namespace pollcore::daemon
