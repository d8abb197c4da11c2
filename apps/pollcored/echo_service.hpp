// The service "echo": sends each message back from the buffer in which the message arrived, with the same immediate
// data.
//
// A connection has `depth` buffers. Each buffer is in exactly one of these states:
//
//     posted as a receive --message--> waits to be sent --accepted--> being sent --completed--> waits to be posted
//             ^                                                                                      |
//             +----------------------------------------accepted--------------------------------------+
//
// A connection therefore has at most `depth` work requests in flight, and its queue pair and the completion ring have
// room for all of them. A request that cannot be submitted now waits in the queue of its connection, in order, and
// holds up no other connection. A peer that is slow to post receives (rnr_retry 7) holds up only the buffers of its own
// connection.
//
// There are two threads. The reception's thread makes and closes connections; the data thread does all other work. The
// phase of a connection says which of the two threads owns the connection. Only the owner may touch the connection:
//
//     phase    owner
//     vacant   reception     Becomes opening when the reception is about to answer a peer.
//     opening  data thread   Becomes serving when all receives are submitted, ended if one is refused.
//     serving  data thread   Becomes ended when work has failed or the peer has left.
//     ended    data thread   The reception may read why the connection ended.
//     closed   data thread   Becomes vacant when the data thread has taken the last completion.
//
// When the reception has closed the queue pair, it sets the phase to closed, even if the data thread owns the
// connection. The reception touches nothing else in the connection then.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "reception.hpp"
#include "service.hpp"

namespace pollcore::daemon {

class EchoService final : public Service, private ConnectionHandler {
public:
    EchoService(Runtime& runtime, const ServiceConfig& config);
    ~EchoService() override;

    [[nodiscard]] const std::string& address() const noexcept override { return reception_.address(); }
    [[nodiscard]] std::string describe() const override;
    [[nodiscard]] std::size_t connections() const noexcept override { return reception_.connections(); }
    [[nodiscard]] bool broken() const noexcept override { return reception_.broken(); }

    void start() override;
    /// The service does not answer messages that arrive after this call.
    void admit_peers(bool yes) noexcept override { reception_.admit_peers(yes); }
    void begin_drain() noexcept override;
    /// Whether the service no longer listens, and each message that was taken has been sent back and acknowledged by
    /// its peer. Messages of connections that have ended do not count.
    [[nodiscard]] bool drained() const noexcept override;
    bool close() noexcept override;

private:
    static constexpr std::size_t kPollBurst = 64;
    static constexpr std::uint32_t kSubmissionSlotsMax = 4096;
    /// How long the data thread may take to read the completions of closed queue pairs. They are in the ring already.
    static constexpr std::chrono::seconds kLastCompletions{1};
    /// How long the data thread spins for the next message before it sleeps.
    static constexpr std::chrono::microseconds kSpin{20};
    /// How often the data thread checks for changes that raise no event: room for waiting requests, and the end of
    /// kLastCompletions.
    static constexpr std::chrono::milliseconds kLookAgain{1};

    enum class Phase : std::uint8_t { vacant, opening, serving, ended, closed };
    struct Buffer {
        std::uint32_t length = 0;
        std::uint32_t imm_data = 0;
        bool with_imm = false;
        bool to_send = false;  ///< the buffer is to be sent; if false, it is to be posted as a receive
    };
    struct Connection {
        std::atomic<Phase> phase{Phase::vacant};
        QpHandle qp;
        bool begun = false;           ///< this connection is counted in active_
        bool with_work = false;       ///< this connection is in with_work_
        std::uint32_t in_flight = 0;  ///< work requests in flight
        std::uint32_t owed = 0;       ///< messages that were received and are not yet sent back
        std::uint32_t waiting_first = 0;
        std::uint32_t waiting_count = 0;
        std::uint64_t echoed = 0;
        std::unique_ptr<Buffer[]> buffers;         ///< `depth` buffers
        std::unique_ptr<std::uint32_t[]> waiting;  ///< a circular queue of buffer numbers, with `depth` places
        Ending ending;
    };

    // Called on the reception's thread.
    [[nodiscard]] QueuePairOptions queue_pair_options() override;
    [[nodiscard]] ConnectOptions answer() override;
    void open(std::uint32_t slot, QpHandle qp) override;
    [[nodiscard]] std::optional<Ending> ending(std::uint32_t slot) override;
    void closed(std::uint32_t slot) override;
    [[nodiscard]] bool vacant(std::uint32_t slot) const noexcept override;

    void tell_data_thread() noexcept;

    // Called on the data thread.
    void run() noexcept;
    void wait() noexcept;
    void take_phases();
    void begin(std::uint32_t slot);
    void complete(const Completion& completion);
    void take_message(std::uint32_t slot, std::uint32_t buffer, const Completion& completion);
    void enqueue(std::uint32_t slot, std::uint32_t buffer);
    std::size_t submit_waiting();
    [[nodiscard]] Refusal submit_waiting_of(std::uint32_t slot, std::size_t& submitted);
    [[nodiscard]] Refusal submit(std::uint32_t slot, std::uint32_t buffer);
    void end(Connection& connection, Ending ending);
    void vacate_if_done(Connection& connection) noexcept;
    [[nodiscard]] Ending ending_of(const Connection& connection, const Completion& completion) const;
    [[nodiscard]] bool finished() noexcept;

    const ServiceConfig config_;
    const std::uint32_t length_max_;
    const std::uint64_t stride_;
    ProtectionDomain pd_;
    MemoryRegion region_;
    Session session_;  // used by the data thread; the reception only names it in queue_pair_options()
    std::vector<Connection> connections_;

    // Used by the data thread only.
    std::vector<std::uint32_t> with_work_;  // connections in which a buffer waits
    std::uint32_t phases_seen_ = 0;
    std::uint32_t active_ = 0;  // connections with `begun`
    std::uint64_t owed_ = 0;    // sum of Connection::owed over all connections
    std::optional<std::chrono::steady_clock::time_point> stop_seen_;

    const UniqueFd news_;  // an eventfd, readable after phases_changed_, draining_ or stopping_ has changed

    std::atomic<std::uint32_t> phases_changed_{0};  // how often the reception has changed a phase
    std::atomic<bool> draining_{false};             // set by the owner of the service
    std::atomic<bool> stopping_{false};             // set by the owner of the service
    std::atomic<bool> drained_{false};              // set by the data thread

    Reception reception_;
    std::thread thread_;
};

}  // namespace pollcore::daemon
