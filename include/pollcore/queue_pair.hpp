// A queue pair, and how its connection is described.
//
// Thread safety: control calls, from any thread; handle() needs no care.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pollcore/counters.hpp"
#include "pollcore/export.h"
#include "pollcore/flow_control.hpp"
#include "pollcore/handle.hpp"
#include "pollcore/limits.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

class ControlSide;
class ProtectionDomain;
class ReceivePool;
class Session;
class SharedReceiveQueue;

/// The transport service of a queue pair; values of `enum ibv_qp_type` (ibv_create_qp(3)).
enum class QpType : std::uint8_t {
    rc = 2,  ///< reliable connection
    uc = 3,  ///< unreliable connection: nothing is acknowledged, a lost packet loses its message
    ud = 4,  ///< unreliable datagram: no connection, each send names its destination, a message is one packet
};

/// What the specification allows on a send queue of this type (ibv_post_send(3)). Sessions and workers go by the mask
/// that a queue pair got when it was made: this one without what its device has not.
[[nodiscard]] constexpr OpcodeMask opcodes_of(QpType type) noexcept {
    constexpr OpcodeMask kSends = opcode_bit(Opcode::send) | opcode_bit(Opcode::send_with_imm);
    constexpr OpcodeMask kWrites = opcode_bit(Opcode::rdma_write) | opcode_bit(Opcode::rdma_write_with_imm);
    constexpr OpcodeMask kAnswered = opcode_bit(Opcode::rdma_read) | opcode_bit(Opcode::atomic_cmp_and_swp) |
                                     opcode_bit(Opcode::atomic_fetch_and_add);
    // UC's packets cannot carry a key to invalidate.
    constexpr OpcodeMask kWindows = opcode_bit(Opcode::bind_mw) | opcode_bit(Opcode::local_inv);
    switch (type) {
        case QpType::rc: return kSends | kWrites | kAnswered | kWindows | opcode_bit(Opcode::send_with_inv);
        case QpType::uc: return kSends | kWrites | kWindows;
        case QpType::ud: return kSends;
    }
    return 0;
}

/// Path and reliability attributes of a connection; the names and value ranges of
/// `struct ibv_qp_attr` (ibv_modify_qp(3)). rdma_cm chooses GID, packet sequence numbers and address;
/// over it the fields marked (*) apply only to a connect by exchanged information.
struct PathAttributes {
    std::uint8_t traffic_class = 0;
    std::uint8_t service_level = 0;        ///< (*)
    std::uint32_t flow_label = 0;          ///< (*)
    std::uint8_t hop_limit = 64;           ///< (*)
    std::uint16_t mtu = 0;                 ///< bytes, 256 to 4096; 0: what the port has active
    std::uint8_t timeout = 14;             ///< ack timeout, 4.096 us << timeout; 0 waits for ever
    std::uint8_t retry_count = 6;          ///< 0 to 7. On Soft-RoCE 7 acts as infinite
    std::uint8_t rnr_retry = 6;            ///< 0 to 6; 7 waits for ever
    std::uint8_t min_rnr_timer = 12;       ///< as in the specification's table: 12 is 0.64 ms
    std::uint8_t max_rd_atomic = 16;       ///< reads and atomics this side may have in flight, within the device's
    std::uint8_t max_dest_rd_atomic = 16;  ///< and those it serves
};

/// Where the peer of a connection with flow control says what it has posted or read: its own memory's address and key.
struct FlowBlock {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    FlowControl kind = FlowControl::off;
    std::uint8_t reserved[3] = {};
};

/// What a peer must know to connect by its own channel, without rdma_cm. Plain data, sent as it is
/// between machines of the same byte order.
struct QpInfo {
    std::array<std::uint8_t, 16> gid{};
    std::uint32_t qp_num = 0;
    union {
        std::uint32_t psn = 0;  ///< the first that this side sends
        std::uint32_t qkey;     ///< UD: what a datagram to it must bring
    };
    std::uint16_t lid = 0;
    std::uint16_t mtu = 0;     ///< bytes, what the port has active
    QpType type = QpType::rc;  ///< both sides must be of one
    std::uint8_t reserved[3] = {};
    FlowBlock flow{};  ///< both sides must be of one kind
};
static_assert(sizeof(QpInfo) == 48);

enum class QpState : std::uint8_t {
    init,   ///< takes receives, no sends
    ready,  ///< RTS
    error,  ///< refuses new work; what was in flight is being flushed
    closed,
};

/// Which access peers have to this side's memory through the QP, as IBV_ACCESS_REMOTE_*.
struct RemoteAccess {
    bool read = false;
    bool write = false;
    bool atomic = false;

    [[nodiscard]] static constexpr RemoteAccess all() noexcept { return {true, true, true}; }
};

/// One session's part in a queue pair.
struct QpShare {
    Session* session = nullptr;
    std::uint32_t send_depth = 64;  ///< send-queue slots that are this session's
};

struct QueuePairOptions {
    QpType type = QpType::rc;
    /// UD only, which is ready when it is made: datagrams that bring another key are dropped. One with its highest bit
    /// set is for programs with CAP_NET_RAW (capabilities(7)); an attached one must have it when it attaches.
    std::uint32_t qkey = 0;
    std::string device{};                  ///< name from the configuration; empty: the only one
    const ProtectionDomain* pd = nullptr;  ///< null: the device's default
    /// Sessions that may post. All belong to one worker. Receives belong to the first, with `recv_depth` slots.
    std::vector<QpShare> shares{};
    std::uint32_t recv_depth = 64;
    /// Where receives are taken from; the first share's session must be the one that it belongs to, and recv_depth is
    /// of no use. Null: the QP has a receive queue of its own.
    const SharedReceiveQueue* srq = nullptr;
    /// What posts the receives, up to recv_depth of them; the first share's session must be the one that it belongs to,
    /// whose completions are wide for a UD queue pair. Null: the session does. With FlowControl::ring the write ring
    /// where messages arrive, of this queue pair alone; then there are no receives. Null: none does.
    const ReceivePool* pool = nullptr;
    /// With FlowControl::credits and a pool: where messages go that are too long for the pool's buffers, up to the
    /// length of this one's. Such a message stays in its sender's memory, which this end's worker reads, and then
    /// delivers as the others; its completion names this pool. The sender's request has one SGE, and in
    /// WorkRequest::rkey the remote key of its region, which allows remote reads; with 0 it is refused
    /// (Refusal::message_too_long). The bytes stay as they are until the request completes, as for any send. One at a
    /// time: what is sent after it waits until it was read. The first share's session must be the one that it belongs
    /// to. Null: there is no such way, and all messages that are too long are refused.
    const ReceivePool* rendezvous_pool = nullptr;
    std::uint32_t rendezvous_share = 0;  ///< buffers of it that are this queue pair's; 0: two
    /// Buffers of the pool that are this queue pair's, posted or with the application; 0: twice recv_depth.
    std::uint32_t pool_share = 0;
    std::uint32_t sges_max = 1;    ///< per work request, send and receive
    std::uint32_t inline_max = 0;  ///< bytes
    /// RC and UC. What a peer may do to memory whose remote key it was given; as a rule nothing. FlowControl::credits
    /// adds reads and writes, FlowControl::ring writes: by these the ends of a connection reach each other's blocks,
    /// rings, and long messages.
    RemoteAccess remote_access{};
    FlowControl flow = FlowControl::off;
    bool separate_cqs = false;  ///< receives complete on another CQ than sends
    /// The requests of the send queue that the worker posts with one doorbell share one completion of the device, the
    /// last one's. Each request still has a completion, with its own status and in order; they come together, when the
    /// last one has ended. That spares the device and the worker a CQE per request. It costs time: a buffer is free
    /// again when the whole burst has ended, which is up to WorkerConfig::qp_burst requests of any session. It is good
    /// for streams of small requests, and bad for one that is waited for. When the queue pair goes to error in the
    /// middle of a burst without a request that failed, the whole burst counts as flushed, what had succeeded too. When
    /// the provider refuses the last request of a burst, the queue pair fails (post_refused): nothing would tell that
    /// the others have ended.
    bool coalesce_signals = false;
};

struct ConnectOptions {
    PathAttributes path{};
    /// At most kRequestPrivateDataMax, or kReplyPrivateDataMax in an answer; with flow control kPrivateDataFlow less.
    std::vector<std::byte> private_data{};
    std::chrono::milliseconds timeout{5000};
};

/// A queue pair that sessions post to. Move-only; closing it completes everything in flight.
class POLLCORE_API QueuePair {
public:
    QueuePair() = default;
    /// By Context.
    POLLCORE_INTERNAL QueuePair(std::shared_ptr<ControlSide> control, QpHandle handle) noexcept;
    ~QueuePair();
    QueuePair(QueuePair&& other) noexcept;
    QueuePair& operator=(QueuePair&& other) noexcept;

    /// What goes into WorkRequest::qp.
    [[nodiscard]] QpHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Connects to a listener: "ADDRESS:PORT" on a verbs device, a name on a software device. Returns the
    /// private data of its answer. Receives that shall be there for the peer's first message are submitted
    /// before. Throws Error: ECONNREFUSED (the private data of the rejection in the message), ETIMEDOUT, or
    /// what the network said.
    std::vector<std::byte> connect(const std::string& address, const ConnectOptions& options = {});
    /// For programs with a channel of their own: what the peer must know, and connecting with what it said.
    /// Both sides call both.
    [[nodiscard]] QpInfo info() const;
    void connect(const QpInfo& peer, const PathAttributes& path = {});
    /// Tells the peer, where the QP was connected by an address, and moves the QP to error: what is in flight is
    /// flushed. A peer that was connected by info() hears nothing: what an RC one sends from then on fails
    /// (retry_exc_err), and disconnected() says nothing there.
    void disconnect();
    /// The peer left, or disconnect() was called. New work is refused until reset().
    [[nodiscard]] bool disconnected() const;
    /// The provider's number, by which logs, errors and other tools name the queue pair (rdma-resource(8)).
    [[nodiscard]] std::uint32_t qp_num() const;
    /// Since the QP was opened or reset. Nothing where the device does not count per QP; verbs do not,
    /// Context::rnr_counts may.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts() const;

    /// Begins again, from any state: the QP is as a new one, in INIT, where it takes receives and can be connected, or,
    /// a UD QP, ready. What is in flight completes first, flushed by the device or, with status qp_closed, by the
    /// runtime; a connection is ended. Of a shared receive queue only what the QP had taken completes.
    /// handle() is another afterwards: the same index, a new generation, so that work meant for the connection before
    /// is refused (stale_handle), or, if it was submitted while this ran, completes with request_refused. False when
    /// draining was cut short by the configuration's drain_timeout. Not while another thread uses this object. Throws
    /// Error(ENODEV) when the device was lost. When the device refuses, it throws and the QP stays in error.
    bool reset();

    /// Takes the QP out of service: every work request in flight gets its completion, by the device or, with
    /// status qp_closed, by the runtime. False when it had to be cut short by the configuration's
    /// drain_timeout: the log says how many work requests that were, and both counters named cut_short count it. The
    /// destructor closes too. When the device refuses, it throws and the QP stays in error: it can be closed again, or
    /// reset.
    bool close();

private:
    std::shared_ptr<ControlSide> control_;
    QpHandle handle_{};
};

}  // namespace pollcore
