// The connections of processes that attach: a thread that accepts, reads and writes, and never waits for anything else. What they
// say goes to the control thread; what it answers comes back over a queue.
//
// Whoever connects is hostile: how many may be there unheard, how much is read of one before it takes its answers, and how many
// lines it can write into the log are bounded.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "attach/credentials.hpp"
#include "attach/client_inbox.hpp"
#include "attach/line_budget.hpp"
#include "attach/listening_socket.hpp"
#include "attach/reply.hpp"
#include "base/foreign_fd.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

class Connections {
public:
    using Clock = std::chrono::steady_clock;

    /// Called on a thread of this object's, which must not wait.
    struct Ways {
        std::function<void(Heard&&)> hear;
        std::function<void()> due;
        std::function<std::size_t()> attached;  ///< how many are, or are being taken down
    };
    Connections(const AttachConfig& config, Ways ways);
    ~Connections();
    Connections(const Connections&) = delete;
    Connections& operator=(const Connections&) = delete;

    /// Calls come from here on. Throws std::system_error.
    void start();
    /// And no more.
    void stop() noexcept;
    /// Whoever comes from here on is turned away.
    void close() noexcept { closed_.store(true, std::memory_order_release); }

    /// To one that may be gone.
    void send(std::uint32_t number, Reply&& reply);
    /// After what was sent to it.
    void hang_up(std::uint32_t number);
    /// Has `due` called then, or before.
    void call_at(Clock::time_point when);
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }

private:
    static constexpr std::uint64_t kListener = 0;
    static constexpr std::uint64_t kWake = 1;
    // A client's socket and its pidfd.
    static constexpr std::uint64_t tag_of(std::uint32_t number, bool pidfd) noexcept { return std::uint64_t{number} << 1 | pidfd; }
    static constexpr std::uint32_t kFirstNumber = 1;
    static_assert(std::uint64_t{kFirstNumber} << 1 > kWake);

    struct Connection {
        ForeignFd socket;
        Peer peer;
        Clock::time_point since;
        bool heard = false;    // has said something
        bool reading = true;   // of the epoll
        std::uint32_t asked = 0;
        std::deque<Reply> unread;
        bool writing = false;
        bool told = false;  // that it does not read
    };
    struct Outgoing {
        std::uint32_t number = 0;
        Reply reply;
        bool hang_up = false;
    };

    void put(Outgoing&& outgoing);
    void watch(int fd, std::uint64_t tag, std::uint32_t events, int operation);
    void loop() noexcept;
    void one_turn();
    [[nodiscard]] int wait_ms() const;
    void accept_some();
    void note(const std::string& what);
    void welcome(ForeignFd socket);
    void turn_away(int socket, const Peer& peer, int error, const std::string& why);
    void serve(std::uint32_t number, Connection& connection, std::uint32_t events);
    void rearm(std::uint32_t number, Connection& connection);
    void write(std::uint32_t number, Connection& connection);
    void send_outgoing();
    void end_strangers();
    void lose(std::uint32_t number, const char* how);
    void forget(std::uint32_t number);

    const AttachConfig config_;
    const AllowList allowed_;
    const Ways ways_;
    UniqueFd epoll_;
    UniqueFd wake_;
    ListeningSocket listener_;
    std::atomic<bool> ending_{false};
    std::atomic<bool> closed_{false};
    std::atomic<Clock::time_point> due_at_{Clock::time_point::max()};
    std::atomic<std::uint64_t> refused_{0};
    std::mutex outgoing_mutex_;
    std::deque<Outgoing> outgoing_;

    // The loop's thread.
    std::map<std::uint32_t, Connection> connections_;
    std::set<std::uint32_t> held_back_;  // what they are sent is to be tried again
    std::size_t strangers_ = 0;  // of whom nothing was heard yet
    std::uint32_t next_number_ = kFirstNumber;
    LineBudget notes_{2};

    std::thread thread_;
};

}  // namespace pollcore
