// The service "echo": sends each message back from the buffer in which it came, with its immediate data.
//
// A connection has `depth` buffers, and each is in one place at a time:
//
//     posted as a receive --message--> waits to be sent --accepted--> being sent --completed--> waits to be posted
//             ^                                                                                      |
//             +----------------------------------------accepted--------------------------------------+
//
// Thus a connection has at most `depth` work requests in flight, and queue pair and completion ring have room for
// them. A request that cannot be submitted now waits in its connection's queue, in order, and holds up no other
// connection. A peer that is slow to post receives (rnr_retry 7) holds up only its own buffers.
//
// There are two threads: the reception's makes and closes connections, the data thread does the rest. They hand a
// connection to each other by its phase. Only the thread that a phase belongs to may touch the connection:
//
//     vacant   reception's   becomes opening when a peer is to be answered
//     opening  data thread's becomes serving when all receives are submitted
//     serving  data thread's becomes ended when work failed or the peer left
//     ended    data thread's, and the reception may read why
//     closed   data thread's, set by the reception when the queue pair is closed; becomes vacant when the last
//              completion was taken. The reception may replace any of the data thread's phases by it, but touches
//              nothing else in the connection then.
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
    /// Messages that come from now on are not answered.
    void begin_drain() noexcept override;
    /// Whether each message that was taken has been sent back and acknowledged by its peer.
    [[nodiscard]] bool drained() const noexcept override;
    bool close() noexcept override;

private:
    static constexpr std::size_t kPollBurst = 64;
    static constexpr std::uint32_t kSubmissionSlotsMax = 4096;
    /// How long the data thread may take to read the completions of closed queue pairs, which are in the ring already.
    static constexpr std::chrono::seconds kLastCompletions{1};
    /// How long the data thread looks for the next message before it sleeps.
    static constexpr std::chrono::microseconds kSpin{20};
    /// How often the data thread looks for changes without an event: room for waiting requests, the end of
    /// kLastCompletions.
    static constexpr std::chrono::milliseconds kLookAgain{1};

    enum class Phase : std::uint8_t { vacant, opening, serving, ended, closed };
    struct Buffer {
        std::uint32_t length = 0;
        std::uint32_t imm_data = 0;
        bool with_imm = false;
        bool to_send = false;  ///< false: to be posted as a receive
    };
    struct Connection {
        std::atomic<Phase> phase{Phase::vacant};
        QpHandle qp;
        bool begun = false;           ///< counted in active_
        bool with_work = false;       ///< stands in with_work_
        std::uint32_t in_flight = 0;  ///< work requests
        std::uint32_t owed = 0;       ///< messages taken and not yet sent back
        std::uint32_t waiting_first = 0;
        std::uint32_t waiting_count = 0;
        std::uint64_t echoed = 0;
        std::unique_ptr<Buffer[]> buffers;         ///< depth
        std::unique_ptr<std::uint32_t[]> waiting;  ///< a queue of buffers; depth
        Ending ending;
    };

    // On the reception's thread.
    [[nodiscard]] QueuePairOptions queue_pair_options() override;
    [[nodiscard]] ConnectOptions answer() override;
    void open(std::uint32_t slot, QpHandle qp) override;
    [[nodiscard]] std::optional<Ending> ending(std::uint32_t slot) override;
    void closed(std::uint32_t slot) override;
    [[nodiscard]] bool vacant(std::uint32_t slot) const noexcept override;

    void tell_data_thread() noexcept;

    // On the data thread.
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
    Session session_;  // the data thread's; the reception only names it in queue_pair_options()
    std::vector<Connection> connections_;

    // The data thread's.
    std::vector<std::uint32_t> with_work_;  // connections where something waits
    std::uint32_t phases_seen_ = 0;
    std::uint32_t active_ = 0;  // connections that are not vacant
    std::uint64_t owed_ = 0;    // over all connections
    std::optional<std::chrono::steady_clock::time_point> stop_seen_;

    const UniqueFd news_;  // eventfd: one of the members below has changed

    std::atomic<std::uint32_t> phases_changed_{0};  // the reception's: how often it has changed a phase
    std::atomic<bool> draining_{false};             // the owner's
    std::atomic<bool> stopping_{false};             // the owner's
    std::atomic<bool> drained_{false};              // the data thread's

    Reception reception_;
    std::thread thread_;
};

}  // namespace pollcore::daemon
