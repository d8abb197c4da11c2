// The software device's objects: genuine ibv_pd, ibv_mr, ibv_cq_ex, ibv_srq and ibv_qp with the device's own part
// behind.
//
// Thread safety: an object is touched under the lock of its engine only; what is constant after creation is
// said so. Use counts of PDs belong to the device's control mutex.
// Invariants, in counts that only grow (32 bits, wrapping): freed <= done <= cursor <= assigned <= posted
// <= freed + depth. A slot is free again when a completion at or behind it was polled, as on an HCA: a run
// of unsignaled sends that fills the queue keeps it full.
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
    std::uint32_t users = 0;  ///< QPs, SRQs, MRs and MWs
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
    SoftQp* qp;           ///< whose slots it gives back; null once that QP was reset or destroyed
    std::uint32_t freed;  ///< new `freed` of the queue; a receive of an SRQ gives one slot back instead
    bool receive;

    /// It was polled, or will never be.
    void give_back() const noexcept;
};
static_assert(sizeof(Cqe) == 64);

/// The payload of a received message that waits in its CQE: SoftProfile::copies_at_poll.
struct HeldPayload {
    std::uint64_t to = 0;    ///< the SGE's address, as it stands there
    std::uint32_t size = 0;  ///< 0: none
    std::byte bytes[SoftProfile::kPayloadInCqe] = {};
};

/// For what a CQ is armed by ibv_req_notify_cq.
enum class Armed : std::uint8_t { no, solicited, any };

/// How many completions make an event, and after how long fewer do (ibv_modify_cq(3)).
struct Moderation {
    std::uint32_t count = 1;
    std::uint64_t period_ns = 0;
    std::uint32_t held = 0;      ///< completions that would have made an event
    std::uint64_t until_ns = 0;  ///< when they make one after all; 0: none is held
};

/// An extended CQ, which is an ordinary one too: verbs let both ways of polling have it.
struct alignas(kCacheLine) SoftCq : ibv_cq_ex {
    [[nodiscard]] static SoftCq& of(ibv_cq& cq) noexcept {
        return static_cast<SoftCq&>(reinterpret_cast<ibv_cq_ex&>(cq));  // as ibv_cq_ex_to_cq() back
    }
    [[nodiscard]] ibv_cq* plain() noexcept { return ibv_cq_ex_to_cq(this); }

    // hot
    alignas(kCacheLine) OwnLines<Cqe> entries;
    OwnLines<HeldPayload> held;  ///< beside the entries; empty where the profile holds none
    std::uint32_t mask = 0;
    std::uint32_t capacity = 0;  ///< constant, as asked
    std::uint32_t head = 0;      ///< next to be polled
    std::uint32_t tail = 0;
    bool dead = false;   ///< overrun
    bool shown = false;  ///< between ibv_start_poll and ibv_end_poll: the entry at head is the current one
    Armed armed = Armed::no;
    bool keeps_more = false;   ///< constant: `held` or `times` is there
    Engine* engine = nullptr;  ///< constant
    // cold
    OwnLines<std::uint64_t>
        times;  ///< beside the entries: when each came, in ns of the engine's clock; empty where nobody asked for it
    std::shared_ptr<Engine> engine_owner;
    std::uint32_t users = 0;             ///< queues of QPs; under the device's control mutex
    std::shared_ptr<Channel> events_to;  ///< constant; null: it has no channel
    Moderation moderation;
    std::uint32_t events_raised = 0;  ///< and not taken
    SoftCq* next_raised = nullptr;    ///< Channel's
    std::uint32_t events_taken = 0;   ///< and not acknowledged

    [[nodiscard]] bool empty() const noexcept { return head == tail; }
    [[nodiscard]] Cqe& front() noexcept { return entries[head & mask]; }
    /// The front is about to be seen: what waits in it goes to its memory.
    void place_payload() noexcept {
        if (held.empty()) [[likely]]
            return;
        const HeldPayload& payload = held[head & mask];
        copy_to_memory(reinterpret_cast<std::byte*>(payload.to), payload.bytes, payload.size);
    }
    /// Takes the front out and gives back the slots of its QP that it stands for.
    void pop() noexcept;
};

// ---- queue pair ----

struct SendWqe {
    std::uint64_t wr_id;
    std::uint64_t remote_addr;  ///< bind: where the window begins
    std::uint64_t compare_add;  ///< bind: the window's length
    std::uint64_t swap;         ///< bind: the region's lkey, and above it the access flags
    std::uint32_t rkey;         ///< bind: the window's new key; *_inv: the key that ends
    std::uint32_t imm;          ///< bind: the window's key before
    std::uint32_t length;       ///< of all SGEs; more than kMessageMax stands for "too long"
    std::uint32_t first_psn;    ///< of the first pass; packets of later passes have the same numbers
    std::uint32_t last_psn;
    std::uint8_t opcode;  ///< ibv_wr_opcode
    std::uint8_t flags;   ///< ibv_send_flags
    std::uint8_t num_sge;
    bool read_in_flight;  ///< counted in rd_in_flight
    std::uint8_t fault;   ///< ibv_wc_status that the fault plan has for it; 0: none
};
static_assert(sizeof(SendWqe) <= 64);

/// Where a datagram goes: what its send takes over of the address handle, which may be gone when it is sent.
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
    std::uint8_t fault;  ///< as in SendWqe
};

/// Slots of a send or a receive queue.
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

/// Receives leave it in the order they were posted, each for the QP whose message comes next; they complete in any
/// order. Here freed counts completions that were polled, whichever, and done receives that were taken.
struct alignas(kCacheLine) SoftSrq : ibv_srq {
    WorkQueue<RecvWqe> rq;
    std::uint32_t limit = 0;   ///< armed: an event when fewer are left; 0: not armed
    Engine* engine = nullptr;  ///< constant
    // cold
    std::shared_ptr<Engine> engine_owner;
    std::uint32_t users = 0;  ///< QPs; under the device's control mutex

    [[nodiscard]] std::uint32_t left() const noexcept { return rq.posted - rq.done; }
};

/// The sending side's place in the protocol.
struct Requester {
    std::uint32_t cursor = 0;                    ///< WQE that is being sent
    std::uint32_t cursor_packet = 0;             ///< next packet of it
    std::uint32_t assigned = 0;                  ///< WQEs before this one have their PSNs
    std::uint32_t next_psn = 0;                  ///< for the next WQE that gets its PSNs
    std::uint32_t una_psn = 0;                   ///< oldest that is not acknowledged
    std::uint32_t sent_psn = 0;                  ///< behind the last that was ever sent
    std::uint32_t rd_in_flight = 0;              ///< reads and atomics
    std::uint32_t local_done = 0;                ///< binds and invalidations that wait for those before them
    ibv_wc_status local_error = IBV_WC_SUCCESS;  ///< of the WQE at the cursor; reported when its turn comes
    std::uint8_t retries_left = 0;
    std::uint8_t rnr_retries_left = 0;
    bool waiting_rnr = false;
    std::uint64_t deadline_ns = 0;     ///< 0: to be set at the next look at the clock
    std::uint64_t waits_since_ns = 0;  ///< for the peer's thread, which does not poll; 0: it does not
    // constant from RTS on
    std::uint64_t ack_timeout_ns = 0;  ///< 0: never
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry = 0;  ///< kRnrForever: no limit
    std::uint64_t rnr_naks = 0;  ///< received
};
inline constexpr std::uint8_t kRnrForever = 7;

/// What the receiving side still has to say, in the order of the requests.
struct ResponseJob {
    enum class Kind : std::uint8_t { ack, nak, rnr_nak, read, atomic };
    Kind kind = Kind::ack;
    std::uint8_t syndrome = 0;
    bool again = false;     ///< read, atomic: of a duplicate, which stands for a request that was counted already
    std::uint32_t psn = 0;  ///< of the next response packet
    std::uint32_t rkey = 0;
    std::uint32_t length = 0;  ///< read: what is left
    std::uint64_t va = 0;      ///< read: where it goes on
    std::uint64_t value = 0;   ///< atomic
};

struct AtomicResult {
    std::uint32_t psn = 0;
    bool valid = false;
    std::uint64_t value = 0;
};

/// The receiving side's place in the protocol.
struct Responder {
    enum class Message : std::uint8_t { none, send, write };

    std::uint32_t expected_psn = 0;
    Message message = Message::none;  ///< which kind is half received
    bool nak_sent = false;            ///< silent until the expected PSN comes
    bool heard = false;               ///< COMM_EST was raised, or is not called for
    std::uint32_t offset = 0;         ///< bytes of the message so far
    std::uint32_t rkey = 0;           ///< write: where it goes on
    std::uint32_t remaining = 0;
    std::uint64_t va = 0;

    // a ring of jobs, and the last atomics for their duplicates; sized for the device's rd_atomic_max
    OwnLines<ResponseJob> jobs;
    std::uint32_t jobs_mask = 0;
    std::uint32_t jobs_head = 0;
    std::uint32_t jobs_tail = 0;
    std::uint32_t reads_queued = 0;  ///< reads and atomics among the jobs, without duplicates
    OwnLines<AtomicResult> atomics;
    std::uint32_t atomics_next = 0;
    std::uint64_t rnr_naks = 0;  ///< sent

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
    LinkPair* peer = nullptr;  ///< null: no such peer, what is sent is lost
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
    WorkQueue<RecvWqe> rq;      ///< of no use with an SRQ
    SoftSrq* shared = nullptr;  ///< the SRQ that receives are taken from; constant
    bool payload_in_cqe =
        false;  ///< small messages wait there: SoftProfile::copies_at_poll, and not QpOptions::foreign_addresses
    bool receive_taken = false;  ///< with an SRQ: `taken` holds the receive of the message at hand
    bool last_wqe_said = false;  ///< with an SRQ: LAST_WQE_REACHED was raised since it left RESET
    RecvWqe taken{};
    OwnLines<ibv_sge> taken_sges;
    ListHook tx_hook;     ///< has something to send, or to flush
    ListHook rx_hook;     ///< has something to answer
    ListHook timer_hook;  ///< waits for an acknowledgement or an RNR timer
    // cold
    std::shared_ptr<Engine> engine_owner;
    std::shared_ptr<LinkPair> peer_owner;
    ibv_qp_attr attr{};  ///< as modified so far
    ibv_qp_cap cap{};
    std::uint32_t late_receives = 0;  ///< in ERR: `rq.posted` when it began

    [[nodiscard]] SoftCq& send_queue_cq() noexcept { return SoftCq::of(*send_cq); }
    [[nodiscard]] SoftCq& recv_queue_cq() noexcept { return SoftCq::of(*recv_cq); }
    [[nodiscard]] std::byte* inline_data(std::uint32_t count) noexcept {
        return inline_memory.data() + std::size_t{count & sq.mask} * inline_max;
    }
    [[nodiscard]] Destination& destination(std::uint32_t count) noexcept { return destinations[count & sq.mask]; }
    /// The receive of the message at hand; only after Engine::take_receive.
    [[nodiscard]] const RecvWqe& receive() noexcept { return shared == nullptr ? rq.at(rq.done) : taken; }
    [[nodiscard]] std::span<const ibv_sge> receive_sges() noexcept {
        return {shared == nullptr ? rq.sges(rq.done) : taken_sges.data(), receive().num_sge};
    }
    /// Whose keys a receive names: with an SRQ its PD's (IBTA 10.2.9).
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

/// A list of QPs threaded through one of their hooks; no memory of its own.
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
