// The socket at which pollctl gives the daemon commands (common/control_wire.hpp). One thread serves all connections.
//
// A client may send anything, stop at any moment, or not read its answer. The thread never waits for a client: each
// connection has a time limit, and the number of connections is bounded. Nor does it wait for the thread that carries
// out a command.
//
// Thread safety: health() by any thread, all others by one thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "attach/credentials.hpp"
#include "attach/kept_socket.hpp"
#include "base/foreign_fd.hpp"
#include "base/heartbeat.hpp"
#include "base/line_budget.hpp"
#include "base/unique_fd.hpp"
#include "control_answer.hpp"
#include "control_command.hpp"
#include "pollcore/config.hpp"
#include "pollcore/health.hpp"

namespace pollcore::daemon {

/// Who gives a command.
struct ControlCaller {
    uid_t uid = 0;
    pid_t pid = 0;

    /// "uid 0 (pid 4711)"
    [[nodiscard]] std::string text() const;
};

class ControlSocket {
public:
    using Clock = std::chrono::steady_clock;

    static constexpr const char* kThreadName = "pollcore-admin";
    /// The most connections at one time. The last kConnectionsOfRoot are for root.
    static constexpr std::size_t kConnectionsMax = 20;
    static constexpr std::size_t kConnectionsOfRoot = 4;
    /// A command must come within this time.
    static constexpr std::chrono::seconds kCommandWithin{5};
    /// The client must take a part of its answer within this time.
    static constexpr std::chrono::seconds kTakenWithin{5};

    /// The socket's thread calls these functions, which must not wait.
    struct Ways {
        /// Carries the command out, or has another thread do so. Returns how long to wait for the answer.
        std::function<std::chrono::milliseconds(const ControlCommand&, const ControlCaller&,
                                                const std::shared_ptr<ControlAnswer>&)>
            carry_out;
        /// Why there is no answer within that time.
        std::function<std::string(const ControlCommand&, ControlAnswer::Given)> why_late;
        std::function<void()> begin_thread;  ///< names and places the thread
    };

    /// Listens at config.path. Throws as ListeningSocket.
    ControlSocket(const ControlConfig& config, Ways ways);
    ~ControlSocket();
    ControlSocket(const ControlSocket&) = delete;
    ControlSocket& operator=(const ControlSocket&) = delete;

    /// Starts the thread. Throws std::system_error.
    void start();
    /// Ends the thread. Commands that have no answer yet are answered that the daemon is stopping. The functions of
    /// Ways are not called after this.
    void stop() noexcept;
    [[nodiscard]] ThreadHealth health() const;

private:
    struct Connection {
        ForeignFd socket;
        ControlCaller caller;
        Clock::time_point deadline;
        std::optional<ControlCommand> command;  // not set until it has come
        std::shared_ptr<ControlAnswer> answer;
        std::string text;      // the answer, once it is there
        std::size_t sent = 0;  // bytes of it
        bool blocked = false;  // the socket has no room for the rest
    };

    void loop() noexcept;
    void one_turn();
    void say_the_end(Connection& connection);
    void accept_some();
    void welcome(ForeignFd socket);
    void refuse(const ForeignFd& socket, const std::string& who, std::string_view code, const std::string& why);
    void note(const std::string& what);
    // Each returns false when the connection ends.
    [[nodiscard]] bool go_on(Connection& connection, bool readable, Clock::time_point now);
    [[nodiscard]] bool receive(Connection& connection, Clock::time_point now);
    [[nodiscard]] bool send_some(Connection& connection, Clock::time_point now);
    void answer(Connection& connection, std::string text, Clock::time_point now);

    const AllowList allowed_;
    const Ways ways_;
    const std::shared_ptr<UniqueFd> wake_;  // shared with answers that come after the end
    KeptSocket listener_;
    std::atomic<bool> ending_{false};
    Heartbeat heartbeat_;

    // Used by the thread only.
    std::list<Connection> connections_;
    LineBudget notes_{2};

    std::thread thread_;
};

}  // namespace pollcore::daemon
