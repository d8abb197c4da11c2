// The software device's objects. Each is a genuine ibv_pd, ibv_mr, ibv_mw, ibv_ah, ibv_cq_ex, ibv_srq or ibv_qp,
// followed by the device's own data.
//
// Thread safety: a thread uses an object only under the lock of the object's engine. There are two exceptions: members
// marked as constant do not change after creation, and the device's control mutex guards the use counts.
// Invariant: the counts of a queue only grow (32 bits, wrapping), and freed <= done <= cursor <= assigned <= posted <=
// freed + depth. A slot becomes free when its own completion, or that of a later slot, has been polled, as on an HCA.
// So a queue that is full of unsignaled sends stays full.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <infiniband/verbs.h>

#include "device/soft/copy.hpp"
#include "device/soft/memory_table.hpp"
#include "device/soft/profile.hpp"
#include "device/soft/protocol.hpp"
#include "pollcore/own_lines.hpp"

namespace pollcore::soft {

class Channel;
class Engine;
struct LinkPair;
struct SoftQp;

struct SoftPd : ibv_pd {
    std::uint32_t users = 0;  ///< number of QPs, SRQs, MRs, MWs and AHs in the PD
};

struct SoftMr : ibv_mr {};

struct SoftMw : ibv_mw {
    SoftMw(ibv_pd* of, ibv_mw_type kind) : ibv_mw{}, window{kind, of} {
        context = of->context;
        pd = of;
        type = kind;
    }
    Window window;
};

struct SoftAh : ibv_ah {
    ibv_ah_attr attr{};
};

// ---- completion queue ----

struct Cqe {
    ibv_wc wc;
    SoftQp* qp;           ///< QP whose slots the CQE gives back; null after that QP was reset or destroyed
    std::uint32_t freed;  ///< new value of the QP's WorkQueue::freed; not used by a receive of an SRQ
    bool receive;

    /// Gives the CQE's slots back: a QP's queue gets them up to `freed`, an SRQ gets one. Called when the CQE was
    /// polled or will never be polled.
    void give_back() const noexcept;
};
static_assert(sizeof(Cqe) == 64);

/// The payload of a received message. It waits in the CQE until the CQ is polled (SoftProfile::copies_at_poll).
struct HeldPayload {
    std::uint64_t to = 0;    ///< address that the receive's SGE contains
    std::uint32_t size = 0;  ///< 0: there is no payload
    std::byte bytes[SoftProfile::kPayloadInCqe] = {};
};

/// Which completions may raise the CQ's next event, as set by ibv_req_notify_cq(3).
enum class Armed : std::uint8_t { no, solicited, any };

/// Moderation of events (ibv_modify_cq(3)): an event is raised when `count` completions are held, or when `period_ns`
/// have passed since the first held completion.
struct Moderation {
    std::uint32_t count = 1;
    std::uint64_t period_ns = 0;
    std::uint32_t held = 0;      ///< completions that have raised no event yet
    std::uint64_t until_ns = 0;  ///< latest time at which the held completions raise an event; 0: no completion is held
};

/// An extended CQ. It is also an ordinary CQ, so both ways of polling work on it.
struct alignas(kCacheLine) SoftCq : ibv_cq_ex {
    [[nodiscard]] static SoftCq& of(ibv_cq& cq) noexcept {
        return static_cast<SoftCq&>(reinterpret_cast<ibv_cq_ex&>(cq));  // undoes ibv_cq_ex_to_cq()
    }
    [[nodiscard]] ibv_cq* plain() noexcept { return ibv_cq_ex_to_cq(this); }

    // hot
    alignas(kCacheLine) OwnLines<Cqe> entries;
    OwnLines<HeldPayload> held;  ///< one for each entry; empty if the profile lets no payload wait in a CQE
    std::uint32_t mask = 0;
    std::uint32_t capacity = 0;  ///< constant: number of entries that create_cq() was asked for
    std::uint32_t head = 0;      ///< count of the entry that is polled next
    std::uint32_t tail = 0;
    bool dead = false;   ///< the CQ was overrun
    bool shown = false;  ///< between ibv_start_poll and ibv_end_poll: the entry at `head` is the current completion
    Armed armed = Armed::no;
    bool keeps_more = false;   ///< constant: `held` or `times` is not empty
    Engine* engine = nullptr;  ///< constant
    // cold
    /// For each entry, the time at which it was added, in ns of the engine's clock. Empty if the CQ has no time stamps.
    OwnLines<std::uint64_t> times;
    std::shared_ptr<Engine> engine_owner;
    /// Send and receive queues of QPs that use the CQ; guarded by the device's control mutex.
    std::uint32_t users = 0;
    std::shared_ptr<Channel> events_to;  ///< constant; null: the CQ has no channel
    Moderation moderation;
    std::uint32_t events_raised = 0;  ///< events raised and not taken
    SoftCq* next_raised = nullptr;    ///< next CQ in the Channel's list of CQs with events
    std::uint32_t events_taken = 0;   ///< events taken and not acknowledged

    [[nodiscard]] bool empty() const noexcept { return head == tail; }
    [[nodiscard]] Cqe& front() noexcept { return entries[head & mask]; }
    /// Copies the payload that waits in the front entry to the receive's memory. Called before the poller sees the
    /// entry.
    void place_payload() noexcept {
        if (held.empty()) [[likely]]
            return;
        const HeldPayload& payload = held[head & mask];
        copy_to_memory(reinterpret_cast<std::byte*>(payload.to), payload.bytes, payload.size);
    }
    /// Removes the front entry, and gives its slots back to their queue.
    void pop() noexcept;
};

// ---- queue pair ----

struct SendWqe {
    std::uint64_t wr_id;
    std::uint64_t remote_addr;  ///< bind: where the window begins
    std::uint64_t compare_add;  ///< bind: the window's length
    std::uint64_t swap;         ///< bind: the region's lkey in the lower 32 bits, the access flags in the upper ones
    std::uint32_t rkey;         ///< bind: the window's new key; *_inv: the key that becomes invalid
    std::uint32_t imm;          ///< bind: the window's old key
    std::uint32_t length;       ///< bytes of all SGEs; more than kMessageMax: the message is too long
    std::uint32_t first_psn;    ///< set when the WQE is first sent; a packet that is sent again keeps its PSN
    std::uint32_t last_psn;
    std::uint8_t opcode;  ///< ibv_wr_opcode
    std::uint8_t flags;   ///< ibv_send_flags
    std::uint8_t num_sge;
    bool read_in_flight;  ///< counted in Requester::rd_in_flight
    std::uint8_t fault;   ///< ibv_wc_status with which the fault plan lets the WQE end; 0: no fault
};
static_assert(sizeof(SendWqe) <= 64);

/// Where a datagram goes. Copied from the address handle, which may be gone when the datagram is sent.
struct Destination {
    ibv_gid gid{};
    std::uint32_t qpn = 0;
    std::uint32_t qkey = 0;
    std::uint32_t flow_label = 0;
    std::uint8_t traffic_class = 0;
    std::uint8_t hop_limit = 0;
    std::uint8_t service_level = 0;
};

struct RecvWqe {
    std::uint64_t wr_id;
    std::uint64_t length;
    std::uint32_t num_sge;
    std::uint8_t fault;  ///< like SendWqe::fault
};

/// The slots of a send or receive queue.
template <class Wqe>
struct WorkQueue {
    OwnLines<Wqe> wqes;
    OwnLines<ibv_sge> sge_memory;
    std::uint32_t mask = 0;
    std::uint32_t depth = 0;
    std::uint32_t sges_max = 0;
    std::uint32_t posted = 0;
    std::uint32_t done = 0;
    std::uint32_t freed = 0;

    void allocate(std::uint32_t depth_wanted, std::uint32_t sges) {
        const std::uint32_t slots = std::bit_ceil(depth_wanted == 0 ? 1u : depth_wanted);
        wqes = OwnLines<Wqe>(slots);
        sge_memory = OwnLines<ibv_sge>(std::size_t{slots} * (sges == 0 ? 1 : sges));
        mask = slots - 1;
        depth = depth_wanted;
        sges_max = sges;
    }
    [[nodiscard]] bool full() const noexcept { return posted - freed >= depth; }
    [[nodiscard]] Wqe& at(std::uint32_t count) noexcept { return wqes[count & mask]; }
    [[nodiscard]] ibv_sge* sges(std::uint32_t count) noexcept {
        return sge_memory.data() + std::size_t{count & mask} * sges_max;
    }
    void clear() noexcept { posted = done = freed = 0; }
};

// ---- shared receive queue ----

/// Receives are taken in the order in which they were posted. Each is taken by the QP whose message comes next, so
/// receives complete in any order. In an SRQ's queue, `done` counts the receives that were taken, and `freed` counts
/// those whose completions were polled.
struct alignas(kCacheLine) SoftSrq : ibv_srq {
    WorkQueue<RecvWqe> rq;
    /// An event is raised when fewer receives than this are left; 0: no limit is armed.
    std::uint32_t limit = 0;
    Engine* engine = nullptr;  ///< constant
    // cold
    std::shared_ptr<Engine> engine_owner;
    std::uint32_t users = 0;  ///< QPs that use the SRQ; guarded by the device's control mutex

    [[nodiscard]] std::uint32_t left() const noexcept { return rq.posted - rq.done; }
};

/// The protocol state of a QP's sending side.
struct Requester {
    std::uint32_t cursor = 0;         ///< WQE that is being sent
    std::uint32_t cursor_packet = 0;  ///< next packet of the WQE at the cursor
    std::uint32_t assigned = 0;       ///< WQEs before this one have their PSNs
    std::uint32_t next_psn = 0;       ///< first PSN of the next WQE that gets its PSNs
    std::uint32_t una_psn = 0;        ///< oldest PSN that is not acknowledged
    std::uint32_t sent_psn = 0;       ///< the PSN after the last one that was ever sent
    std::uint32_t rd_in_flight = 0;   ///< reads and atomics in flight
    /// Binds and invalidations that were carried out and wait for earlier WQEs to complete.
    std::uint32_t local_done = 0;
    /// Error of the WQE at the cursor; reported when all earlier WQEs have completed.
    ibv_wc_status local_error = IBV_WC_SUCCESS;
    std::uint8_t retries_left = 0;
    std::uint8_t rnr_retries_left = 0;
    bool waiting_rnr = false;
    std::uint64_t deadline_ns = 0;  ///< time at which the timer fires; 0: set at the next look at the clock
    /// Time at which packets began to wait because the peer's thread does not poll. 0 means that none wait.
    std::uint64_t waits_since_ns = 0;
    // constant from RTS on, except rnr_naks
    std::uint64_t ack_timeout_ns = 0;  ///< 0: never
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry = 0;  ///< kRnrForever: no limit
    std::uint64_t rnr_naks = 0;  ///< RNR NAKs received
};
inline constexpr std::uint8_t kRnrForever = 7;

/// A response that the receiving side still has to send. Responses keep the order of the requests.
struct ResponseJob {
    enum class Kind : std::uint8_t { ack, nak, rnr_nak, read, atomic };
    Kind kind = Kind::ack;
    std::uint8_t syndrome = 0;
    /// Only for reads and atomics. True if the job answers a duplicate request, which Responder::reads_queued does not
    /// count.
    bool again = false;
    std::uint32_t psn = 0;  ///< PSN of the next response packet
    std::uint32_t rkey = 0;
    std::uint32_t length = 0;  ///< read: bytes that remain to be sent
    std::uint64_t va = 0;      ///< read: address of the next byte
    std::uint64_t value = 0;   ///< atomic: the word's old value
};

struct AtomicResult {
    std::uint32_t psn = 0;
    bool valid = false;
    std::uint64_t value = 0;
};

/// The protocol state of a QP's receiving side.
struct Responder {
    enum class Message : std::uint8_t { none, send, write };

    std::uint32_t expected_psn = 0;
    Message message = Message::none;  ///< kind of the message of which only the first packets have come
    /// A NAK or an RNR NAK was queued; packets with later PSNs are dropped silently until the expected one comes.
    bool nak_sent = false;
    bool heard = false;        ///< COMM_EST was raised since the QP left RESET
    std::uint32_t offset = 0;  ///< bytes of the message that have come
    std::uint32_t rkey = 0;    ///< write: key of the memory that the message is written to
    std::uint32_t remaining = 0;
    std::uint64_t va = 0;

    // `jobs` is a ring of responses to be sent. `atomics` is a ring of the results of the last atomics, from which
    // duplicates are answered. Both are sized for the device's rd_atomic_max.
    OwnLines<ResponseJob> jobs;
    std::uint32_t jobs_mask = 0;
    std::uint32_t jobs_head = 0;
    std::uint32_t jobs_tail = 0;
    std::uint32_t reads_queued = 0;  ///< reads and atomics among the jobs, without duplicates
    OwnLines<AtomicResult> atomics;
    std::uint32_t atomics_next = 0;
    std::uint64_t rnr_naks = 0;  ///< RNR NAKs sent

    [[nodiscard]] bool idle() const noexcept { return jobs_head == jobs_tail; }
    [[nodiscard]] bool full() const noexcept { return jobs_tail - jobs_head > jobs_mask; }
};

struct ListHook {
    SoftQp* previous = nullptr;
    SoftQp* next = nullptr;
    bool linked = false;
};

struct alignas(kCacheLine) SoftQp : ibv_qp {
    // hot: both directions
    Engine* engine = nullptr;  ///< constant
    LinkPair* peer = nullptr;  ///< links to the peer's engine; null: there is no such peer, and packets are lost
    ibv_qp_state current = IBV_QPS_RESET;
    std::uint32_t mtu = 0;  ///< bytes
    std::uint32_t dest_qpn = 0;
    bool signal_all = false;
    std::uint8_t max_rd_atomic = 0;
    std::uint8_t max_dest_rd_atomic = 0;
    int access = 0;  ///< IBV_ACCESS_REMOTE_*
    std::uint32_t inline_max = 0;
    Requester tx;
    WorkQueue<SendWqe> sq;
    OwnLines<std::byte> inline_memory;
    OwnLines<Destination> destinations;  ///< UD: one per send slot
    Responder rx;
    WorkQueue<RecvWqe> rq;      ///< not used with an SRQ
    SoftSrq* shared = nullptr;  ///< the SRQ that receives are taken from; constant
    /// True if small messages wait in their CQEs. Only with SoftProfile::copies_at_poll, and without
    /// QpOptions::leave_memory.
    bool payload_in_cqe = false;
    bool receive_taken = false;  ///< with an SRQ: `taken` holds the receive of the message that is arriving
    bool last_wqe_said = false;  ///< with an SRQ: LAST_WQE_REACHED was raised since the QP left RESET
    RecvWqe taken{};
    OwnLines<ibv_sge> taken_sges;
    ListHook tx_hook;     ///< linked: the QP has something to send, or to flush
    ListHook rx_hook;     ///< linked: the QP has something to answer
    ListHook timer_hook;  ///< linked: the QP waits for an acknowledgement or an RNR timer
    // cold
    std::shared_ptr<Engine> engine_owner;
    std::shared_ptr<LinkPair> peer_owner;
    ibv_qp_attr attr{};  ///< attributes that modify() has set so far
    ibv_qp_cap cap{};
    std::uint32_t late_receives = 0;  ///< in ERR: `rq.posted` when the QP entered this state

    [[nodiscard]] SoftCq& send_queue_cq() noexcept { return SoftCq::of(*send_cq); }
    [[nodiscard]] SoftCq& recv_queue_cq() noexcept { return SoftCq::of(*recv_cq); }
    [[nodiscard]] std::byte* inline_data(std::uint32_t count) noexcept {
        return inline_memory.data() + std::size_t{count & sq.mask} * inline_max;
    }
    [[nodiscard]] Destination& destination(std::uint32_t count) noexcept { return destinations[count & sq.mask]; }
    /// The receive of the message that is arriving. Must be called after Engine::take_receive().
    [[nodiscard]] const RecvWqe& receive() noexcept { return shared == nullptr ? rq.at(rq.done) : taken; }
    [[nodiscard]] std::span<const ibv_sge> receive_sges() noexcept {
        return {shared == nullptr ? rq.sges(rq.done) : taken_sges.data(), receive().num_sge};
    }
    /// The PD whose keys a receive names: with an SRQ, the SRQ's PD (IBTA 10.2.9).
    [[nodiscard]] const ibv_pd* receive_pd() const noexcept { return shared == nullptr ? pd : shared->pd; }
};

inline void Cqe::give_back() const noexcept {
    if (qp == nullptr)
        return;
    if (!receive)
        qp->sq.freed = freed;
    else if (qp->shared == nullptr) [[likely]]
        qp->rq.freed = freed;
    else
        ++qp->shared->rq.freed;
}

inline void SoftCq::pop() noexcept {
    front().give_back();
    ++head;
}

/// A list of QPs that are linked through one of their hooks. The list allocates no memory.
template <ListHook SoftQp::*Hook>
class QpList {
public:
    [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
    [[nodiscard]] SoftQp* first() const noexcept { return first_; }
    [[nodiscard]] static SoftQp* next(const SoftQp& qp) noexcept { return (qp.*Hook).next; }

    void push_back(SoftQp& qp) noexcept {
        ListHook& hook = qp.*Hook;
        if (hook.linked)
            return;
        hook = {last_, nullptr, true};
        (last_ != nullptr ? (last_->*Hook).next : first_) = &qp;
        last_ = &qp;
    }
    void remove(SoftQp& qp) noexcept {
        ListHook& hook = qp.*Hook;
        if (!hook.linked)
            return;
        (hook.previous != nullptr ? (hook.previous->*Hook).next : first_) = hook.next;
        (hook.next != nullptr ? (hook.next->*Hook).previous : last_) = hook.previous;
        hook = {};
    }

private:
    SoftQp* first_ = nullptr;
    SoftQp* last_ = nullptr;
};

}  // namespace pollcore::soft
