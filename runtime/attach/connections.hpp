// The connections of processes that attach. One thread accepts, decides who may come, and watches whether the processes
// live. It reads and closes nothing of theirs: each connection has a thread of its own for that. Messages go to the
// control thread.
//
// A process that connects is hostile. The number of connections without a first message is bounded, in all and for each
// user, and so is the number of log lines that they cause.
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
#include "attach/listening_socket.hpp"
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

    /// Called on this object's threads, which must not wait.
    struct Ways {
        std::function<void(Heard&&)> hear;
        std::function<void()> due;
        std::function<std::size_t()> attached;  ///< how many processes are attached or being taken down
    };
    /// `queue_pairs`: of the whole runtime. Throws Error.
    Connections(const AttachConfig& config, std::uint32_t queue_pairs, Ways ways);
    ~Connections();
    Connections(const Connections&) = delete;
    Connections& operator=(const Connections&) = delete;

    /// Starts the thread; `ways` are called from here on. Throws std::system_error.
    void start();
    /// Ends all connections. `ways` are not called after this.
    void stop() noexcept;
    /// Turns away all processes that connect from here on.
    void close() noexcept { closed_.store(true, std::memory_order_release); }
    /// Changes who may attach, and the limits, also for processes that are attached. A process that may not be attached
    /// any more is ended (Heard::unwelcome). Throws Error(EINVAL) for a user or group that this machine does not know,
    /// and then changes nothing.
    void configure(const AttachConfig& config);

    /// Sends to a process, which may be gone.
    void send(std::uint32_t number, ReplyNode&& node) noexcept;
    /// Ends a connection after all that was given to send().
    void hang_up(std::uint32_t number);
    /// Has `due` called at `when` or before.
    void call_at(Clock::time_point when);
    /// The heartbeat of the thread that accepts and watches (D33).
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
    /// False: nobody else waits, or no descriptor is left.
    bool accept_some();
    void look_at_path();
    void listen_anew();
    void note(const std::string& what);
    void welcome(ForeignFd socket);
    [[nodiscard]] std::shared_ptr<Account> account_of_user(std::uint32_t uid);
    /// Connections without a first message yet: of all users, and of this one. Call with mutex_.
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
    const SocketPlace place_;
    std::unique_ptr<ListeningSocket> listener_;  // used by the loop's thread only from start() on
    std::atomic<bool> ending_{false};
    std::atomic<bool> closed_{false};
    std::atomic<Clock::time_point> due_at_{Clock::time_point::max()};
    std::atomic<std::uint64_t> refused_{0};
    Heartbeat heartbeat_;

    std::mutex mutex_;
    AttachConfig config_;
    AllowList allowed_;
    std::map<std::uint32_t, Entry> connections_;
    std::map<std::uint32_t, std::weak_ptr<Account>> users_;
    // Connections that exist, also those that were told to leave.
    const std::shared_ptr<std::atomic<int>> living_ = std::make_shared<std::atomic<int>>(0);

    std::mutex over_mutex_;
    std::deque<std::pair<std::uint32_t, const char*>> over_;

    std::mutex notes_mutex_;
    LineBudget notes_{2};

    // Used by the loop's thread only.
    bool any_strangers_ = false;
    Clock::time_point next_look_{};
    ListeningSocket::Standing stood_ = ListeningSocket::Standing::own;  // at the last look
    std::string why_not_anew_;                                          // the reason that was logged last
    std::uint32_t next_number_ = kFirstNumber;

    std::thread thread_;
};

}  // namespace pollcore
