// The software device's objects: genuine ibv_pd, ibv_mr, ibv_cq_ex, ibv_srq and ibv_qp, with the device's own part
// behind each.
//
// Thread safety: an object is touched only under the lock of its engine. Members that are constant after creation are
// marked as constant. The device's control mutex guards use counts.
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
    std::uint32_t freed;  ///< new value of WorkQueue::freed; a receive of an SRQ gives one slot back instead
    bool receive;

    /// Gives its slots back: the entry was polled, or will never be.
    void give_back() const noexcept;
};
static_assert(sizeof(Cqe) == 64);

/// The payload of a received message that waits in its CQE: SoftProfile::copies_at_poll.
struct HeldPayload {
    std::uint64_t to = 0;    ///< the SGE's address, as the SGE has it
    std::uint32_t size = 0;  ///< 0: none
    std::byte bytes[SoftProfile::kPayloadInCqe] = {};
};

/// Which completions raise an event, after ibv_req_notify_cq.
enum class Armed : std::uint8_t { no, solicited, any };

/// How many completions make an event, and after what time fewer do (ibv_modify_cq(3)).
struct Moderation {
    std::uint32_t count = 1;
    std::uint64_t period_ns = 0;
    std::uint32_t held = 0;      ///< completions that have not made an event yet
    std::uint64_t until_ns = 0;  ///< when the held completions make an event at the latest; 0: none is held
};

/// An extended CQ. It is an ordinary CQ, too: it can be polled in both ways.
struct alignas(kCacheLine) SoftCq : ibv_cq_ex {
    [[nodiscard]] static SoftCq& of(ibv_cq& cq) noexcept {
        return static_cast<SoftCq&>(reinterpret_cast<ibv_cq_ex&>(cq));  // undoes ibv_cq_ex_to_cq()
    }
    [[nodiscard]] ibv_cq* plain() noexcept { return ibv_cq_ex_to_cq(this); }

    // hot
    alignas(kCacheLine) OwnLines<Cqe> entries;
    OwnLines<HeldPayload> held;  ///< one for each entry; empty if the profile holds no payloads
    std::uint32_t mask = 0;
    std::uint32_t capacity = 0;  ///< constant: the entries that were asked for
    std::uint32_t head = 0;      ///< next to be polled
    std::uint32_t tail = 0;
    bool dead = false;   ///< overrun
    bool shown = false;  ///< between ibv_start_poll and ibv_end_poll: the entry at head is the current one
    Armed armed = Armed::no;
    bool keeps_more = false;   ///< constant: `held` or `times` is not empty
    Engine* engine = nullptr;  ///< constant
    // cold
    /// One for each entry: when it came, in ns of the engine's clock. Empty if the CQ has no time stamps.
    OwnLines<std::uint64_t> times;
    std::shared_ptr<Engine> engine_owner;
    std::uint32_t users = 0;             ///< queues of QPs; under the device's control mutex
    std::shared_ptr<Channel> events_to;  ///< constant; null: it has no channel
    Moderation moderation;
    std::uint32_t events_raised = 0;  ///< events raised and not taken
    SoftCq* next_raised = nullptr;    ///< Channel's list
    std::uint32_t events_taken = 0;   ///< events taken and not acknowledged

    [[nodiscard]] bool empty() const noexcept { return head == tail; }
    [[nodiscard]] Cqe& front() noexcept { return entries[head & mask]; }
    /// The front entry is about to be seen: copies the payload that waits in it to the receive's memory.
    void place_payload() noexcept {
        if (held.empty()) [[likely]]
            return;
        const HeldPayload& payload = held[head & mask];
        copy_to_memory(reinterpret_cast<std::byte*>(payload.to), payload.bytes, payload.size);
    }
    /// Takes the front entry out and gives back the slots of the QP that it stands for.
    void pop() noexcept;
};

// ---- queue pair ----

struct SendWqe {
    std::uint64_t wr_id;
    std::uint64_t remote_addr;  ///< bind: where the window begins
    std::uint64_t compare_add;  ///< bind: the window's length
    std::uint64_t swap;         ///< bind: the region's lkey, and above it the access flags
    std::uint32_t rkey;         ///< bind: the window's new key; *_inv: the key that becomes invalid
    std::uint32_t imm;          ///< bind: the window's old key
    std::uint32_t length;       ///< of all SGEs; more than kMessageMax stands for "too long"
    std::uint32_t first_psn;    ///< constant after the first pass: a packet that is sent again keeps its PSN
    std::uint32_t last_psn;
    std::uint8_t opcode;  ///< ibv_wr_opcode
    std::uint8_t flags;   ///< ibv_send_flags
    std::uint8_t num_sge;
    bool read_in_flight;  ///< counted in rd_in_flight
    std::uint8_t fault;   ///< ibv_wc_status that the fault plan gives it; 0: none
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
    std::uint8_t fault;  ///< as in SendWqe
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

/// Receives leave it in the order in which they were posted, each for the QP whose message comes next. They complete in
/// any order. Here `freed` counts completions that were polled, in any order, and `done` counts receives that were
/// taken.
struct alignas(kCacheLine) SoftSrq : ibv_srq {
    WorkQueue<RecvWqe> rq;
    std::uint32_t limit = 0;   ///< raises an event when fewer receives are left; 0: not armed
    Engine* engine = nullptr;  ///< constant
    // cold
    std::shared_ptr<Engine> engine_owner;
    std::uint32_t users = 0;  ///< QPs; under the device's control mutex

    [[nodiscard]] std::uint32_t left() const noexcept { return rq.posted - rq.done; }
};

/// The sending side's place in the protocol.
struct Requester {
    std::uint32_t cursor = 0;                    ///< WQE that is being sent
    std::uint32_t cursor_packet = 0;             ///< next packet of the WQE at the cursor
    std::uint32_t assigned = 0;                  ///< WQEs before this one have their PSNs
    std::uint32_t next_psn = 0;                  ///< for the next WQE that gets its PSNs
    std::uint32_t una_psn = 0;                   ///< oldest PSN that is not acknowledged
    std::uint32_t sent_psn = 0;                  ///< behind the last PSN that was ever sent
    std::uint32_t rd_in_flight = 0;              ///< reads and atomics
    std::uint32_t local_done = 0;                ///< binds and invalidations that wait for earlier WQEs to complete
    ibv_wc_status local_error = IBV_WC_SUCCESS;  ///< of the WQE at the cursor; reported when the WQE's turn comes
    std::uint8_t retries_left = 0;
    std::uint8_t rnr_retries_left = 0;
    bool waiting_rnr = false;
    std::uint64_t deadline_ns = 0;     ///< 0: to be set at the next look at the clock
    std::uint64_t waits_since_ns = 0;  ///< since when it waits for the peer's thread, which does not poll; 0: no wait
    // constant from RTS on
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
    bool again = false;     ///< read, atomic: answers a duplicate, whose first request was counted already
    std::uint32_t psn = 0;  ///< of the next response packet
    std::uint32_t rkey = 0;
    std::uint32_t length = 0;  ///< read: bytes that are left
    std::uint64_t va = 0;      ///< read: address of the next byte
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
    Message message = Message::none;  ///< kind of the message that is half received
    bool nak_sent = false;            ///< the responder says nothing until the expected PSN comes
    bool heard = false;               ///< COMM_EST was raised, or need not be
    std::uint32_t offset = 0;         ///< bytes of the message so far
    std::uint32_t rkey = 0;           ///< write: key of the memory it goes to
    std::uint32_t remaining = 0;
    std::uint64_t va = 0;

    // A ring of jobs, and the results of the last atomics, for duplicates. Both are sized for the device's
    // rd_atomic_max.
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
    LinkPair* peer = nullptr;  ///< null: there is no such peer, and packets are lost
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
    /// Small messages wait in the CQE: with SoftProfile::copies_at_poll, but not with QpOptions::foreign_addresses.
    bool payload_in_cqe = false;
    bool receive_taken = false;  ///< with an SRQ: `taken` holds the receive of the message at hand
    bool last_wqe_said = false;  ///< with an SRQ: LAST_WQE_REACHED was raised since it left RESET
    RecvWqe taken{};
    OwnLines<ibv_sge> taken_sges;
    ListHook tx_hook;     ///< linked: the QP has something to send, or to flush
    ListHook rx_hook;     ///< linked: the QP has something to answer
    ListHook timer_hook;  ///< linked: the QP waits for an acknowledgement or an RNR timer
    // cold
    std::shared_ptr<Engine> engine_owner;
    std::shared_ptr<LinkPair> peer_owner;
    ibv_qp_attr attr{};  ///< as modified so far
    ibv_qp_cap cap{};
    std::uint32_t late_receives = 0;  ///< in ERR: `rq.posted` when the QP entered this state

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

/// A list of QPs linked through one of their hooks, without memory of its own.
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
