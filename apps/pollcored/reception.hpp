// Connects and disconnects the peers of a service. The reception's thread listens, makes a queue pair for each peer,
// answers the peer, and closes connections that have ended. After start() this thread makes all control calls of the
// service. If the service has a data thread, that thread therefore never waits for a control call.
//
// The reception answers one peer at a time. A peer that asks for a connection and never completes the handshake delays
// the next peers by kAcceptTimeout. Established connections go on.
//
// Thread safety: the service's owner calls the public functions. The handler is called on the reception's thread.
// Invariants
//   - A slot holds one connection. A new connection gets the slot only when the handler says that the slot is vacant.
//   - Each open() is followed by exactly one closed() of the slot, after the queue pair was closed.
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
    bool failed = false;  ///< the connection failed; if false, the peer left
    std::string why;
};

class ConnectionHandler {
public:
    virtual ~ConnectionHandler() = default;
    /// The options of each connection's queue pair.
    [[nodiscard]] virtual QueuePairOptions queue_pair_options() = 0;
    /// The path options and the private data of the answer to each peer.
    [[nodiscard]] virtual ConnectOptions answer() = 0;
    /// Called before the reception answers the peer. Returns when the service is ready for the peer's first message.
    virtual void open(std::uint32_t slot, QpHandle qp) = 0;
    /// Why the connection has ended; nullopt while the connection goes on. Called in each turn of the thread's loop.
    [[nodiscard]] virtual std::optional<Ending> ending(std::uint32_t slot) = 0;
    /// Called when the queue pair is closed. All its completions are then in the session's ring.
    virtual void closed(std::uint32_t slot) = 0;
    /// Whether a new connection may use the slot.
    [[nodiscard]] virtual bool vacant(std::uint32_t slot) const noexcept = 0;
};

class Reception {
public:
    static constexpr std::chrono::milliseconds kPatience{
        20};  ///< how long a turn of the thread's loop waits for a peer
    static constexpr std::chrono::milliseconds kAcceptTimeout{3000};

    /// Listens. Makes a queue pair and closes it again, so that a limit of the device is an error here and not when the
    /// first peer connects. The handler must outlive this object. Throws Error.
    Reception(Runtime& runtime, const ServiceConfig& config, ConnectionHandler& handler);
    ~Reception();
    Reception(const Reception&) = delete;
    Reception& operator=(const Reception&) = delete;

    [[nodiscard]] const std::string& address() const noexcept { return address_; }
    [[nodiscard]] std::size_t connections() const noexcept { return open_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool broken() const noexcept { return broken_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool listening() const noexcept { return listening_.load(std::memory_order_acquire); }

    void start();
    /// Whether peers that ask are admitted; else they are rejected.
    void admit_peers(bool yes) noexcept { admits_.store(yes, std::memory_order_relaxed); }
    void stop_listening() noexcept;
    /// Disconnects all peers and ends the thread. Returns false when the work of a queue pair was cut short, then or
    /// earlier.
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
    Listener listener_;  // used only by thread_, once that runs
    const std::string address_;
    std::vector<Slot> slots_;  // used only by thread_
    // Used only by thread_. They limit the lines in the log, because a peer can come, fail and leave as often as it
    // likes.
    LineBudget comings_{50};
    LineBudget failures_{10};

    // Each atomic is written by one thread. All except listening_ publish only their own values (relaxed). listening_
    // is stored with release after the listener is destroyed.
    std::atomic<Phase> phase_{Phase::serving};
    std::atomic<bool> listening_{true};
    std::atomic<bool> admits_{true};
    std::atomic<bool> broken_{false};
    std::atomic<bool> cut_short_{false};
    std::atomic<std::size_t> open_{0};
    std::thread thread_;
};

}  // namespace pollcore::daemon
