// Connects and disconnects the peers of a service: a thread that listens, makes a queue pair for each peer, answers it,
// and closes connections that have ended. It makes all control calls of a service, so that the service's data thread,
// if there is one, never waits for them.
//
// One peer is answered at a time. A peer that asks and then never completes the handshake delays those behind it by
// kAcceptTimeout. Established connections do not notice.
//
// Thread safety: the service's owner calls the public functions. The handler is called on the reception's thread.
// Invariants
//   - A slot is one connection. It is given to a new one only when the handler says that it is vacant.
//   - For each open() there is exactly one closed(), after the queue pair was closed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/line_budget.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore::daemon {

/// Why a connection is over.
struct Ending {
    bool failed = false;  ///< false: the peer left
    std::string why;
};

class ConnectionHandler {
public:
    virtual ~ConnectionHandler() = default;
    /// The options of each connection's queue pair.
    [[nodiscard]] virtual QueuePairOptions queue_pair_options() = 0;
    /// Path and private data of the answer to each peer.
    [[nodiscard]] virtual ConnectOptions answer() = 0;
    /// Called before a peer is answered. Returns when its first message may come.
    virtual void open(std::uint32_t slot, QpHandle qp) = 0;
    /// Why the connection has ended; nothing while it goes on. Called every few milliseconds.
    [[nodiscard]] virtual std::optional<Ending> ending(std::uint32_t slot) = 0;
    /// The queue pair is closed: all its completions are in the session's ring.
    virtual void closed(std::uint32_t slot) = 0;
    [[nodiscard]] virtual bool vacant(std::uint32_t slot) const noexcept = 0;
};

class Reception {
public:
    static constexpr std::chrono::milliseconds kPatience{20};  ///< how long a turn waits for a peer
    static constexpr std::chrono::milliseconds kAcceptTimeout{3000};

    /// Listens. Makes a queue pair and closes it again, so that a limit of the device is an error at the start, not at
    /// the first peer. The handler must outlive this. Throws Error.
    Reception(Runtime& runtime, const ServiceConfig& config, ConnectionHandler& handler);
    ~Reception();
    Reception(const Reception&) = delete;
    Reception& operator=(const Reception&) = delete;

    [[nodiscard]] const std::string& address() const noexcept { return address_; }
    [[nodiscard]] std::size_t connections() const noexcept { return open_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool broken() const noexcept { return broken_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool listening() const noexcept { return listening_.load(std::memory_order_acquire); }

    void start();
    void stop_listening() noexcept;
    /// Disconnects all peers and ends the thread. False when a queue pair had to be cut short.
    bool close() noexcept;

private:
    enum class Phase { serving, draining, closing };
    struct Slot {
        QueuePair qp;
        std::string peer;
    };

    template <class Line>
    static void log_within(LineBudget& budget, Line&& line);
    void run() noexcept;
    void receive();
    void admit(ConnectionRequest& request, std::uint32_t slot);
    void refuse(ConnectionRequest& request, const std::string& why);
    void reap();
    void close_all();
    void close_slot(std::uint32_t slot);
    [[nodiscard]] std::optional<std::uint32_t> free_slot() const;

    Runtime& runtime_;
    const std::string name_;
    ConnectionHandler& handler_;
    Listener listener_;  // the thread's, once it runs
    const std::string address_;
    std::vector<Slot> slots_;  // the thread's
    // The thread's. They limit the log: a peer can come, fail and leave as often as it likes.
    LineBudget comings_{50};
    LineBudget failures_{10};

    // Each is written by one thread. They publish nothing but their own values, except listening_, which is released
    // after the listener is gone.
    std::atomic<Phase> phase_{Phase::serving};
    std::atomic<bool> listening_{true};
    std::atomic<bool> broken_{false};
    std::atomic<bool> cut_short_{false};
    std::atomic<std::size_t> open_{0};
    std::thread thread_;
};

}  // namespace pollcore::daemon
