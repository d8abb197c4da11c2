// The connections of processes that attach. One thread accepts connections, decides which processes may attach, and
// watches whether the processes live. This thread does not read from a process, and closes no descriptor that a process
// has sent: each connection has its own thread for this. Messages go to the control thread.
//
// A process that connects is hostile. The number of connections without a first message is bounded, in total and for
// each user. The number of log lines that such connections cause is bounded, too.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "attach/account.hpp"
#include "attach/client_inbox.hpp"
#include "attach/connection.hpp"
#include "attach/credentials.hpp"
#include "attach/kept_socket.hpp"
#include "attach/reply.hpp"
#include "base/foreign_fd.hpp"
#include "base/heartbeat.hpp"
#include "base/line_budget.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

class Connections {
public:
    using Clock = std::chrono::steady_clock;

    /// The threads of this object call these functions, which must not wait.
    struct Ways {
        std::function<void(Heard&&)> hear;
        std::function<void()> due;
        std::function<std::size_t()> attached;  ///< how many processes are attached or being taken down
    };
    /// `queue_pairs` is the largest number of queue pairs in the runtime. Throws Error.
    Connections(const AttachConfig& config, std::uint32_t queue_pairs, Ways ways);
    ~Connections();
    Connections(const Connections&) = delete;
    Connections& operator=(const Connections&) = delete;

    /// Starts the thread. From now on, the functions of Ways are called. Throws std::system_error.
    void start();
    /// Ends all connections. The functions of Ways are not called after this.
    void stop() noexcept;
    /// From now on, refuses all processes that connect.
    void close() noexcept { closed_.store(true, std::memory_order_release); }
    /// While paused, refuses all processes that connect.
    void pause(bool yes) noexcept { paused_.store(yes, std::memory_order_release); }
    [[nodiscard]] bool paused() const noexcept { return paused_.load(std::memory_order_acquire); }
    /// Changes the limits, and the users and groups that may attach. The change applies to processes that are attached
    /// already, too. A process that may not be attached any more is evicted (Heard::unwelcome). If this machine does
    /// not know a user or group, throws Error(EINVAL) and changes nothing.
    void configure(const AttachConfig& config);

    /// Sends a message to the process `number`. If the process is gone, the message is dropped.
    void send(std::uint32_t number, ReplyNode&& node) noexcept;
    /// Ends a connection by Connection::finish(), after all messages that were passed to send().
    void hang_up(std::uint32_t number);
    /// Ways::due will be called at `when`, or earlier.
    void call_at(Clock::time_point when);
    /// The heartbeat of the thread that accepts connections and watches processes (D33).
    [[nodiscard]] const Heartbeat& heartbeat() const noexcept { return heartbeat_; }
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }

private:
    // Tags of epoll events. Any other tag is the number of a connection whose process has ended.
    static constexpr std::uint64_t kListener = 0;
    static constexpr std::uint64_t kWake = ~std::uint64_t{0};
    static constexpr std::uint32_t kFirstNumber = 1;

    struct Entry {
        std::shared_ptr<Connection> connection;
        std::shared_ptr<Account> account;
        Peer peer;
        Clock::time_point since;
    };

    void watch(int fd, std::uint64_t tag);
    void loop() noexcept;
    void one_turn();
    [[nodiscard]] std::chrono::nanoseconds wait_limit();
    /// Accepts a few connections. Returns false if no other process waits, or if no descriptor is left.
    bool accept_some();
    void note(const std::string& what);
    void welcome(ForeignFd socket);
    /// Why no process may attach now; null if processes may.
    [[nodiscard]] const char* why_shut() const noexcept;
    [[nodiscard]] std::shared_ptr<Account> account_of_user(std::uint32_t uid);
    /// The number of connections without a first message: of all users, and of the user `uid`. Call this with mutex_
    /// held.
    [[nodiscard]] std::pair<std::size_t, std::size_t> strangers(std::uint32_t uid) const;
    void turn_away(int socket, const std::string& who, int error, const std::string& why);
    void lose_those_that_hung_up();
    void end_strangers();
    void lose(std::uint32_t number, const char* how);
    [[nodiscard]] Entry take_out(std::uint32_t number);

    const std::uint32_t queue_pairs_;
    const Ways ways_;
    UniqueFd epoll_;
    UniqueFd wake_;
    KeptSocket listener_;  // after start(), only the loop's thread uses it
    std::atomic<bool> ending_{false};
    std::atomic<bool> closed_{false};
    std::atomic<bool> paused_{false};
    std::atomic<Clock::time_point> due_at_{Clock::time_point::max()};
    std::atomic<std::uint64_t> refused_{0};
    Heartbeat heartbeat_;

    std::mutex mutex_;
    AttachConfig config_;
    AllowList allowed_;
    AllowList own_memory_;
    std::map<std::uint32_t, Entry> connections_;
    std::map<std::uint32_t, std::weak_ptr<Account>> users_;
    // The number of connections that exist, including connections for which leave() was called.
    const std::shared_ptr<std::atomic<int>> living_ = std::make_shared<std::atomic<int>>(0);

    std::mutex over_mutex_;
    std::deque<std::pair<std::uint32_t, const char*>> over_;

    std::mutex notes_mutex_;
    LineBudget notes_{2};

    // Used by the loop's thread only.
    bool any_strangers_ = false;
    std::uint32_t next_number_ = kFirstNumber;

    std::thread thread_;
};

}  // namespace pollcore
