// A queue pair, and the description of its connection.
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

/// The opcodes that the specification allows on a send queue of this type (ibv_post_send(3)). Sessions and workers use
/// the mask that a queue pair gets when it is made (D38): this one, without the opcodes that the device lacks.
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
/// `struct ibv_qp_attr` (ibv_modify_qp(3)). When a connection is made by rdma_cm, that chooses GID, packet sequence
/// numbers and address; the fields marked (*) apply only to a connect by exchanged information.
struct PathAttributes {
    std::uint8_t traffic_class = 0;
    std::uint8_t service_level = 0;   ///< (*)
    std::uint32_t flow_label = 0;     ///< (*)
    std::uint8_t hop_limit = 64;      ///< (*)
    std::uint16_t mtu = 0;            ///< bytes, 256 to 4096; 0: the port's active MTU
    std::uint8_t timeout = 14;        ///< ack timeout, 4.096 us << timeout; 0 waits for ever
    std::uint8_t retry_count = 6;     ///< 0 to 7. On Soft-RoCE 7 acts as infinite
    std::uint8_t rnr_retry = 6;       ///< 0 to 6; 7 waits for ever
    std::uint8_t min_rnr_timer = 12;  ///< as in the specification's table: 12 is 0.64 ms
    std::uint8_t max_rd_atomic = 16;  ///< reads and atomics this side may have in flight, within the device's limit
    std::uint8_t max_dest_rd_atomic = 16;  ///< reads and atomics of the peer that this side serves at once
};

/// With flow control: address and remote key of this end's memory into which the peer writes what it has posted or
/// read.
struct FlowBlock {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    FlowControl kind = FlowControl::off;
    std::uint8_t reserved[3] = {};
};

/// The data that a peer needs to connect over the programs' own channel, without rdma_cm. Plain data, to be sent as it
/// is between machines of the same byte order.
struct QpInfo {
    std::array<std::uint8_t, 16> gid{};
    std::uint32_t qp_num = 0;
    union {
        std::uint32_t psn = 0;  ///< the first PSN that this side sends
        std::uint32_t qkey;     ///< UD: the qkey that a datagram to it must have
    };
    std::uint16_t lid = 0;
    std::uint16_t mtu = 0;     ///< bytes; the port's active MTU
    QpType type = QpType::rc;  ///< must be equal on both sides
    std::uint8_t reserved[3] = {};
    FlowBlock flow{};  ///< its kind must be equal on both sides
};
static_assert(sizeof(QpInfo) == 48);

/// The state of a queue pair.
enum class QpState : std::uint8_t {
    init,   ///< takes receives, no sends
    ready,  ///< RTS
    error,  ///< refuses new work; work in flight is being flushed
    closed,
};

/// Which access peers have to this side's memory through the QP, as IBV_ACCESS_REMOTE_*.
struct RemoteAccess {
    bool read = false;
    bool write = false;
    bool atomic = false;

    [[nodiscard]] static constexpr RemoteAccess all() noexcept { return {true, true, true}; }
};

/// One session's share of a queue pair.
struct QpShare {
    Session* session = nullptr;
    std::uint32_t send_depth = 64;  ///< send-queue slots that are this session's
};

/// Options of Context::create_queue_pair.
struct QueuePairOptions {
    QpType type = QpType::rc;
    /// UD only: datagrams that bring another key are dropped. A key with its highest bit set is for programs with
    /// CAP_NET_RAW (capabilities(7)); an attached process must have that capability when it attaches. A UD queue pair
    /// is ready when it is made (D41).
    std::uint32_t qkey = 0;
    std::string device{};                  ///< name from the configuration; empty: the only one
    const ProtectionDomain* pd = nullptr;  ///< null: the device's default
    /// Sessions that may post. All belong to one worker. Receives belong to the first one, with `recv_depth` slots.
    std::vector<QpShare> shares{};
    std::uint32_t recv_depth = 64;
    /// The shared receive queue that receives are taken from. It must belong to the first share's session, and
    /// recv_depth is not used then. Null: the QP has a receive queue of its own.
    const SharedReceiveQueue* srq = nullptr;
    /// The pool that posts the receives, up to recv_depth of them. It must belong to the first share's session, and for
    /// a UD queue pair that session must have wide completions. Null: the session posts the receives. With
    /// FlowControl::ring: the write ring where messages arrive, for this queue pair alone; there are no receives then.
    /// Null: no messages arrive.
    const ReceivePool* pool = nullptr;
    /// With FlowControl::credits and a pool: a second pool, for messages that are too long for the buffers of `pool`,
    /// up to the length of its own buffers. Such a message stays in the sender's memory until this end's worker reads
    /// it; the worker then delivers it as any other, and its completion names the second pool. The sender's request
    /// must have one SGE, and in WorkRequest::rkey the remote key of the SGE's region, which must allow remote reads;
    /// with 0 the request is refused (Refusal::message_too_long). As for any send, the bytes must not change until the
    /// request completes. One such message is sent at a time: later sends wait until it was read. The pool must belong
    /// to the first share's session. Null: there is no rendezvous, and all messages that are too long are refused.
    const ReceivePool* rendezvous_pool = nullptr;
    std::uint32_t rendezvous_share = 0;  ///< buffers of rendezvous_pool for this queue pair; 0: two
    /// Buffers of `pool` that this queue pair may hold, posted or with the application; 0: twice recv_depth.
    std::uint32_t pool_share = 0;
    std::uint32_t sges_max = 1;    ///< SGEs of each work request, send and receive
    std::uint32_t inline_max = 0;  ///< inline bytes of each work request
    /// RC and UC. What a peer may do to memory whose remote key it was given; by default nothing. FlowControl::credits
    /// adds reads and writes, FlowControl::ring adds writes: the ends of a connection need them to reach each other's
    /// flow blocks, rings, and long messages.
    RemoteAccess remote_access{};
    FlowControl flow = FlowControl::off;
    bool separate_cqs = false;  ///< receives complete on another CQ than sends
    /// Send-queue requests that the worker posts with one doorbell share one CQE, that of the last request (D49). Each
    /// request still has a completion, with its own status and in order; they come together, when the last request has
    /// ended. That saves the device and the worker a CQE for each request. It costs time: a buffer is free again only
    /// when the whole burst has ended, which is up to WorkerConfig::qp_burst requests of any session. It is good for
    /// streams of small requests, and bad for a single request that a thread waits for. When the queue pair goes to
    /// error in the middle of a burst and no request of it failed, the whole burst counts as flushed, even requests
    /// that had succeeded. When the provider refuses the last request of a burst, the queue pair fails (post_refused),
    /// since nothing would report the end of the others.
    bool coalesce_signals = false;
};

/// How a queue pair is connected by address.
struct ConnectOptions {
    PathAttributes path{};
    /// At most kRequestPrivateDataMax bytes, or kReplyPrivateDataMax in an answer; with flow control kPrivateDataFlow
    /// bytes less.
    std::vector<std::byte> private_data{};
    std::chrono::milliseconds timeout{5000};
};

/// A queue pair that sessions post to. Move-only; closing it completes everything in flight.
class POLLCORE_API QueuePair {
public:
    QueuePair() = default;
    /// Made by Context.
    POLLCORE_INTERNAL QueuePair(std::shared_ptr<ControlSide> control, QpHandle handle) noexcept;
    ~QueuePair();
    QueuePair(QueuePair&& other) noexcept;
    QueuePair& operator=(QueuePair&& other) noexcept;

    /// Goes into WorkRequest::qp.
    [[nodiscard]] QpHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Connects to a listener: "ADDRESS:PORT" on a verbs device, a name on a software device. Returns the private data
    /// of the listener's answer. Submit receives for the peer's first messages before this call. Throws Error:
    /// ECONNREFUSED (the message holds the private data of the rejection), ETIMEDOUT, or the network's error.
    std::vector<std::byte> connect(const std::string& address, const ConnectOptions& options = {});
    /// For programs that connect over a channel of their own: what the peer must know. Both sides call info() and
    /// connect().
    [[nodiscard]] QpInfo info() const;
    /// Connects to the queue pair whose info() is `peer`.
    void connect(const QpInfo& peer, const PathAttributes& path = {});
    /// Moves the QP to error, which flushes the work in flight. Tells the peer, if the QP was connected by an address.
    /// A peer that was connected by info() is not told: sends of an RC peer fail from then on (retry_exc_err), and
    /// disconnected() stays false there.
    void disconnect();
    /// Whether the peer left, or disconnect() was called. New work is refused then until reset().
    [[nodiscard]] bool disconnected() const;
    /// The provider's number, by which logs, errors and other tools name the queue pair (rdma-resource(8)).
    [[nodiscard]] std::uint32_t qp_num() const;
    /// RNR NAKs since the QP was opened or reset. Nothing where the device does not count per QP. Verbs devices do not;
    /// Context::rnr_counts may have their counts.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts() const;

    /// Makes the QP as new, from any state, and ends its connection: it is then in INIT, where it takes receives and
    /// can be connected; a UD QP is ready. Work in flight completes first, flushed by the device or, with status
    /// qp_closed, by the runtime; receives of a shared receive queue only if the QP had taken them. Afterwards handle()
    /// has the same index and a new generation. So work meant for the old connection is refused (stale_handle) or, if
    /// it was submitted during this call, completes with request_refused. False when draining was cut short by the
    /// configuration's drain_timeout. No other thread may use this object meanwhile. Throws Error(ENODEV) when the
    /// device was lost. When the device refuses, throws and leaves the QP in error.
    bool reset();

    /// Takes the QP out of service: every work request in flight gets its completion, by the device or, with
    /// status qp_closed, by the runtime. False when the configuration's drain_timeout cut that short: the log says for
    /// how many work requests, and both counters named cut_short count it. The destructor closes, too. When the device
    /// refuses, throws and leaves the QP in error: it can be closed again, or reset.
    bool close();

private:
    std::shared_ptr<ControlSide> control_;
    QpHandle handle_{};
};

}  // namespace pollcore
