// A queue pair, and the description of its connection.
//
// Thread safety: any thread may make any call. During QueuePair::reset or QueuePair::close, no other call may be made.
//
// Some calls wait: connect(), reset(), close(), and ConnectionRequest::accept(). Each has a form that only begins the
// operation. The operation ends with one event (event.hpp), so that one thread can serve thousands of connections. A
// queue pair has one such operation at a time: another call that begins, resets or closes throws Error(EISCONN) or
// Error(EBUSY), except that a close ends an attempt to connect. The destructor of a queue pair with an operation under
// way cancels the operation, closes the queue pair, and does not wait for its end: the program then frees no buffer of
// requests in flight before their completions have come.
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
#include "pollcore/qp_attributes.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

class ControlSide;
struct Event;
class ProtectionDomain;
class ReceivePool;
class Session;
class SharedReceiveQueue;

/// The transport service of a queue pair; values of `enum ibv_qp_type` (ibv_create_qp(3)).
enum class QpType : std::uint8_t {
    rc = 2,  ///< reliable connection
    uc = 3,  ///< unreliable connection: nothing is acknowledged, and a message with a lost packet is lost
    ud = 4,  ///< unreliable datagram: no connection, each send names its destination, a message is one packet
};

/// The opcodes that the specification allows on a send queue of this type (ibv_post_send(3)). When a queue pair is
/// made, it gets a mask of its own: these opcodes, without those that the device lacks (D38). Sessions and workers use
/// the queue pair's own mask.
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

/// Path and reliability attributes of a connection, with the names and value ranges of `struct ibv_qp_attr`
/// (ibv_modify_qp(3)). When rdma_cm makes the connection, rdma_cm chooses GID, packet sequence numbers and address. The
/// fields marked (*) apply only to a connection by exchanged information (QpInfo), and to address handles.
struct PathAttributes {
    std::uint8_t traffic_class = 0;
    std::uint8_t service_level = 0;   ///< (*)
    std::uint32_t flow_label = 0;     ///< (*)
    std::uint8_t hop_limit = 64;      ///< (*)
    std::uint16_t mtu = 0;            ///< bytes, 256 to 4096; 0: the port's active MTU
    std::uint8_t timeout = 14;        ///< ack timeout, 4.096 us << timeout; 0 waits for ever
    std::uint8_t retry_count = 6;     ///< 0 to 7. On Soft-RoCE 7 means without limit
    std::uint8_t rnr_retry = 6;       ///< 0 to 6; 7 means without limit
    std::uint8_t min_rnr_timer = 12;  ///< a code from the specification's table: 12 is 0.64 ms
    std::uint8_t max_rd_atomic = 16;  ///< reads and atomics this side may have in flight, within the device's limit
    std::uint8_t max_dest_rd_atomic = 16;  ///< reads and atomics of the peer that this side serves at once
};

/// With flow control: address and remote key of this end's control block. The peer writes into this block how many
/// receives the peer has posted, or how far it has read its write ring.
struct FlowBlock {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    FlowControl kind = FlowControl::off;
    std::uint8_t reserved[3] = {};
};

/// The data that the peer needs for a connection without rdma_cm. The programs exchange this data over a channel of
/// their own. It is plain data, which can be sent unchanged between machines of the same byte order.
struct QpInfo {
    std::array<std::uint8_t, 16> gid{};
    std::uint32_t qp_num = 0;
    union {
        std::uint32_t psn = 0;  ///< the first PSN that this side sends
        std::uint32_t qkey;     ///< UD: the qkey that a datagram to this queue pair must have
    };
    std::uint16_t lid = 0;
    std::uint16_t mtu = 0;     ///< bytes; the port's active MTU
    QpType type = QpType::rc;  ///< must be equal on both sides
    std::uint8_t reserved[3] = {};
    FlowBlock flow{};  ///< FlowBlock::kind must be equal on both sides
};
static_assert(sizeof(QpInfo) == 48);

/// The state of a queue pair, as a session sees it.
enum class QpState : std::uint8_t {
    init,   ///< takes receives, no sends (INIT or RTR)
    ready,  ///< takes all requests (RTS)
    error,  ///< refuses new requests; requests in flight are being flushed. See SessionOptions::flush_in_error
    closed,
    reset,  ///< QueuePairOptions::by_hand: takes no requests (RESET)
};

/// One session's share of a queue pair.
struct QpShare {
    Session* session = nullptr;
    std::uint32_t send_depth = 64;  ///< number of send-queue slots for this session
};

/// Options of Context::create_queue_pair.
struct QueuePairOptions {
    /// Names the queue pair in the log and in messages, beside its number. At most kNameLengthMax printable ASCII
    /// characters; several queue pairs may have one name. Empty: no name.
    std::string name{};
    QpType type = QpType::rc;
    /// UD only: the key of the queue pair. Datagrams with another key are dropped. A key with its highest bit set is
    /// for programs with CAP_NET_RAW (capabilities(7)); an attached process must have that capability when it attaches.
    /// A UD queue pair is ready as soon as it is made (D41).
    std::uint32_t qkey = 0;
    std::string device{};                  ///< name from the configuration; empty: the only device
    const ProtectionDomain* pd = nullptr;  ///< null: the device's default domain
    /// Sessions that may post. All of them must belong to one worker. The first session has the receives, with
    /// `recv_depth` slots.
    std::vector<QpShare> shares{};
    std::uint32_t recv_depth = 64;
    /// The shared receive queue from which this queue pair takes its receives. It must belong to the first share's
    /// session, and recv_depth is not used. A null pointer means that the QP has its own receive queue.
    const SharedReceiveQueue* srq = nullptr;
    /// The pool that posts the receives, up to recv_depth of them. It must belong to the first share's session. On a UD
    /// queue pair, that session must have wide completions. A null pointer means that the session posts the receives.
    ///
    /// With FlowControl::ring: the write ring where messages arrive. The ring serves this queue pair alone, and there
    /// are no receives. With a null pointer, no messages arrive.
    const ReceivePool* pool = nullptr;
    /// With FlowControl::credits, and a pool here or at `srq`: a second pool, for messages that are longer than the
    /// buffers of the first.
    /// The buffers of the second pool limit the length of these messages. A long message stays in the sender's memory
    /// until the worker at this end reads it. The worker then delivers the message as any other, and the completion
    /// names the second pool. The sender's request must have one SGE. WorkRequest::rkey must be the remote key of the
    /// SGE's region, and the region must allow remote reads. If WorkRequest::rkey is 0, the request is refused
    /// (Refusal::message_too_long). As for any send, the bytes must not change until the request completes. One long
    /// message is sent at a time: later sends wait until it was read. The second pool must belong to the first share's
    /// session. With a null pointer there is no rendezvous, and every message that is too long is refused.
    const ReceivePool* rendezvous_pool = nullptr;
    std::uint32_t rendezvous_share = 0;  ///< buffers of rendezvous_pool for this queue pair; 0 means two
    /// Buffers of `pool` that are posted on this queue pair or held by the application, at most. 0 means twice
    /// recv_depth.
    std::uint32_t pool_share = 0;
    std::uint32_t sges_max = 1;    ///< SGEs of each work request, send and receive
    std::uint32_t inline_max = 0;  ///< inline bytes of each work request
    /// RC and UC: the rights of the peer on memory whose remote key it has; by default none. FlowControl::credits adds
    /// reads and writes, FlowControl::ring adds writes. The ends of a connection need these rights to reach each
    /// other's control blocks, rings and long messages.
    RemoteAccess remote_access{};
    FlowControl flow = FlowControl::off;
    bool separate_cqs = false;  ///< receives complete on another CQ than sends
    /// If true, send-queue requests that the worker posts with one doorbell share the CQE of the last request (D49).
    /// Such a burst has up to WorkerConfig::qp_burst requests, of any session. Each request still has a completion,
    /// with its own status and in order. All completions of a burst come together, when its last request has ended.
    /// This saves the device and the worker a CQE for each request. It costs time, because a buffer is free again only
    /// when the whole burst has ended. So this option is good for streams of small requests, and bad for a single
    /// request that a thread waits for.
    ///
    /// If the queue pair goes to error in the middle of a burst, and no request of the burst has failed, all requests
    /// of the burst count as flushed, even those that had succeeded. If the provider refuses the last request of a
    /// burst, the queue pair fails (post_refused), because nothing would report the end of the other requests.
    bool coalesce_signals = false;
    /// The program moves the queue pair from state to state by QueuePair::modify, as ibv_modify_qp(3) does, and chooses
    /// all its attributes. The queue pair begins in RESET. Nothing else may connect it. Needs FlowControl::off; qkey
    /// and remote_access are given to modify(). A region can be deregistered while its requests name the region:
    /// MemoryRegion::deregister says when.
    bool by_hand = false;
};

/// The form of private data in the messages that make a connection. Both ends must choose one form: the caller by
/// ConnectOptions::form, the other end by Context::listen. Nothing guesses the other end's form.
enum class PrivateDataForm : std::uint8_t {
    /// A header of kPrivateDataHeader bytes comes before the user's bytes and tells their number, so the bytes arrive
    /// without padding. Flow control needs this form. A request without the header, as of a program without pollcore,
    /// arrives as in the raw form.
    framed,
    /// Exactly the user's bytes, for standard protocols. They arrive with zeros behind them, as many as the message has
    /// room for: see kRawRequestPrivateDataMax, kRawReplyPrivateDataMax and kRawRejectPrivateDataMax.
    raw,
};

/// Options of a connection by address.
struct ConnectOptions {
    PathAttributes path{};
    /// At most kRequestPrivateDataMax bytes in a request, or kReplyPrivateDataMax in an answer. With flow control,
    /// kPrivateDataFlow bytes less. In the raw form kPrivateDataHeader bytes more.
    std::vector<std::byte> private_data{};
    PrivateDataForm form = PrivateDataForm::framed;  ///< of the caller; an answer has the form of its listener
    std::chrono::milliseconds timeout{5000};
};

/// A queue pair that sessions post to. Move-only. When it is closed, all its requests in flight complete.
class POLLCORE_API QueuePair {
public:
    QueuePair() = default;
    /// Made by Context.
    POLLCORE_INTERNAL QueuePair(std::shared_ptr<ControlSide> control, QpHandle handle, std::string name,
                                bool by_hand) noexcept;
    ~QueuePair();
    QueuePair(QueuePair&& other) noexcept;
    QueuePair& operator=(QueuePair&& other) noexcept;

    /// Goes into WorkRequest::qp.
    [[nodiscard]] QpHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }
    /// QueuePairOptions::name.
    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    /// Connects to the listener at `address`: "ADDRESS:PORT" on a verbs device, a name on a software device. Returns
    /// the private data of the listener's answer. Submit receives for the peer's first messages before this call.
    /// Throws Error: ECONNREFUSED (the message contains the private data of the rejection), ETIMEDOUT, or the network's
    /// error. With flow control, also EINVAL for PrivateDataForm::raw.
    std::vector<std::byte> connect(const std::string& address, const ConnectOptions& options = {});
    /// The data that the peer needs to connect. For programs that exchange it over a channel of their own: each side
    /// calls info(), and then connect() with the data of the other side.
    [[nodiscard]] QpInfo info() const;
    /// Connects to the queue pair whose info() is `peer`.
    void connect(const QpInfo& peer, const PathAttributes& path = {});
    /// Begins connect(). EventType::established or EventType::connect_failed follows within options.timeout.
    void begin_connect(const std::string& address, const ConnectOptions& options = {});
    /// Moves the QP to error, which flushes the requests in flight. If the QP was connected by an address, the peer is
    /// notified. This call does not wait for the peer. A peer that was connected by info() is not notified: from then
    /// on the sends of an RC peer fail (retry_exc_err), and disconnected() stays false at the peer. Throws
    /// Error(EINVAL) for a queue pair in RESET, from where no way leads to error.
    void disconnect();
    /// Whether the peer has disconnected, or disconnect() was called. New requests are then refused until reset().
    [[nodiscard]] bool disconnected() const;
    /// The provider's number, by which logs, errors and other tools name the queue pair (rdma-resource(8)).
    [[nodiscard]] std::uint32_t qp_num() const;
    /// RNR NAKs since the QP was opened or reset. Returns no value if the device does not count per QP, which is so for
    /// verbs devices. Context::rnr_counts may have counts for the whole device.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts() const;

    /// QueuePairOptions::by_hand: changes the state and the attributes that have a value (ibv_modify_qp(3)). The states
    /// are RESET, INIT, RTR, RTS and ERR. No way leads from RESET to ERR, and from an error only RESET leads on: also
    /// UD and UC do not return from SQE to RTS. To move to RESET is what reset() does: requests in flight complete, and
    /// handle() is new. Whether requests were cut short is in the result of reset() only. Moving to RTR may take a
    /// second while the kernel asks the network for the peer's address.
    ///
    /// Throws Error: EINVAL when the queue pair is not driven by hand, when its type does not have this transition, or
    /// when an attribute does not fit; EOPNOTSUPP for SQD, and for the way from SQE to RTS; EPERM for a privileged
    /// Q_Key; or the device's error. The queue pair is then as before, but in error if reset() has failed.
    void modify(const QpAttributes& attributes);
    /// The attributes of any queue pair, as the device has them (ibv_query_qp(3)). In particular qp_state tells of a
    /// failure that the device has seen.
    [[nodiscard]] QpQuery query() const;

    /// Makes the QP as new, from any state, and ends its connection. First, all requests in flight complete: the device
    /// flushes them, or the runtime completes them with status qp_closed. A receive of a shared receive queue completes
    /// only if this QP had taken it. Then the QP is in the state in which it was made: INIT, where it takes receives
    /// and can be connected; RTS if it is UD; RESET if it is driven by hand. handle() has the same index and a new
    /// generation. So a request for the old connection is refused (stale_handle) or, if it was submitted during this
    /// call, completes with request_refused.
    ///
    /// Returns false if requests were still in flight when the configuration's drain_timeout was over. No other thread
    /// may use this object during this call. Throws Error(ENODEV) when the device was lost. When the device refuses,
    /// throws and leaves the QP in error.
    bool reset();

    /// Begins reset(). EventType::reset_done follows within `timeout`, or within the configuration's drain_timeout if
    /// `timeout` is 0. Pass the event to renew(). Until then, all other calls throw Error, except those that end the
    /// queue pair.
    void begin_reset(std::chrono::milliseconds timeout = {});
    /// Takes the result of begin_reset() from its event: handle() is then the new handle. Returns Event::drained.
    /// Throws Error: EINVAL if `event` is not this queue pair's reset_done, or the reason why the reset failed.
    bool renew(const Event& event);

    /// Takes the QP out of service: every work request in flight gets its completion, by the device or, with status
    /// qp_closed, by the runtime. Returns false if requests were still in flight when the configuration's drain_timeout
    /// was over. The runtime then completes these requests. Their number is in the log and in
    /// WorkerCounters::cut_short, and ControlCounters::cut_short counts the queue pair. The destructor closes the QP,
    /// too. When the device refuses, throws and leaves the QP in error: it can be closed again, or reset.
    bool close();
    /// Begins close(). EventType::closed follows within `timeout`, or within the configuration's drain_timeout if
    /// `timeout` is 0. If the event has no error, the queue pair is gone, and this object may be destroyed.
    void begin_close(std::chrono::milliseconds timeout = {});
    /// Ends the operation that was begun on this queue pair; does nothing if there is none. A connection fails with
    /// ECANCELED. A reset or close is cut short, as if its time limit were over. The operation's event follows.
    void cancel();
    /// For ConnectionRequest: an operation was begun that ends with an event.
    POLLCORE_INTERNAL void note_begun() noexcept { begun_ = true; }

private:
    [[nodiscard]] POLLCORE_INTERNAL bool abandon() noexcept;

    std::shared_ptr<ControlSide> control_;
    QpHandle handle_{};
    std::string name_;
    bool begun_ = false;    // an operation was begun; it may have ended
    bool by_hand_ = false;  // QueuePairOptions::by_hand
};

}  // namespace pollcore
