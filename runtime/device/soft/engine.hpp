// An engine: the part of the software device that runs when one thread polls.
//
// An engine holds the QPs and CQs of one thread domain. It takes packets off the links that lead to it, and runs the
// protocols of its QPs: reliable connections in requester.cc and responder.cc, the other types in unreliable.cc. A post
// only enqueues work. The engine does the work when it moves, that is, in move().
//
// Thread safety: everything requires the engine's lock, except lock(), id(), gid(), profile(), doorbell(), removed(),
// fail() and mark_incoming_gone(). Two engines exchange packets only through links; an engine never takes the lock of
// another.
// Invariants: a QP that could send or flush now is in tx_active_; a QP that could answer now is in rx_active_. Each
// call of move() does a bounded amount of work (the k...Max constants below).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <infiniband/verbs.h>

#include "device/soft/doorbell.hpp"
#include "device/soft/event_queue.hpp"
#include "device/soft/fabric.hpp"
#include "device/soft/faults.hpp"
#include "device/soft/link.hpp"
#include "device/soft/memory_table.hpp"
#include "device/soft/profile.hpp"
#include "device/soft/queues.hpp"
#include "device/soft/spin_lock.hpp"

namespace pollcore::soft {

/// The vendor_err of the software device's failed completions.
[[nodiscard]] constexpr std::uint32_t vendor_err_of(ibv_wc_status status) noexcept {
    return 0x50f70000u | static_cast<std::uint32_t>(status);
}

/// The state that all engines of a device share.
struct DeviceCore {
    DeviceCore(std::function<std::uint64_t()> clock_ns, std::uint32_t regions_max, const SoftProfile& habits,
               std::uint64_t fault_seed)
        : profile(habits), clock(std::move(clock_ns)), memory(regions_max), faults(fault_seed) {}

    const SoftProfile profile;
    std::function<std::uint64_t()> clock;
    MemoryTable memory;
    FaultPlan faults;
    EventQueue events;
    ibv_gid gid{};
    /// Relaxed: it does not matter whether a port that goes down loses packets a moment earlier or later.
    std::atomic<bool> port_up{true};
    /// True after the kernel has removed the device. Sequentially consistent, because Doorbells are rung after the
    /// change: see Doorbell.
    std::atomic<bool> removed{false};
    /// RNR NAKs of all QPs, including destroyed ones. Relaxed: they are only counters.
    std::atomic<std::uint64_t> rnr_naks_received{0};
    std::atomic<std::uint64_t> rnr_naks_sent{0};
};

class alignas(kCacheLine) Engine {
public:
    // Burst limits of one move().
    static constexpr std::uint32_t kTurnsMax = 16;           ///< QPs that send, and as many QPs that answer
    static constexpr std::uint32_t kPacketsPerTurnMax = 16;  ///< packets that one QP sends
    static constexpr std::uint32_t kReceiveMax = 64;         ///< packets that are taken off one link
    static constexpr std::uint32_t kFlushPerTurnMax = 128;   ///< work requests that one QP flushes
    /// While a timer is armed, one move in kMovesPerClock reads the clock.
    static constexpr std::uint32_t kMovesPerClock = 16;
    /// If a thread has not polled for this time, packets that wait for it count as lost.
    static constexpr std::uint64_t kHostPatienceNs = 10'000'000'000;

    Engine(DeviceCore& core, std::shared_ptr<Fabric> fabric);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    ~Engine();

    [[nodiscard]] SpinLock& lock() noexcept { return lock_; }
    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
    [[nodiscard]] const ibv_gid& gid() const noexcept { return core_.gid; }
    [[nodiscard]] FaultPlan& faults() noexcept { return core_.faults; }
    [[nodiscard]] const SoftProfile& profile() const noexcept { return core_.profile; }
    [[nodiscard]] bool removed() const noexcept { return core_.removed.load(std::memory_order_seq_cst); }
    /// The doorbell of the thread that polls, and so moves this engine.
    [[nodiscard]] const std::shared_ptr<Doorbell>& doorbell() const noexcept { return doorbell_; }

    // ---- engine.cc: moving ----

    /// Does all work that can be done now, up to the burst limits. Returns the amount of work done.
    std::uint32_t move() noexcept;
    /// Runs the timers that are due at `now_ns`.
    void tick(std::uint64_t now_ns) noexcept;
    /// The time at which the next timer is due; max() if there is none.
    [[nodiscard]] std::uint64_t next_deadline_ns() const noexcept;
    [[nodiscard]] std::uint64_t now_ns() noexcept;
    /// Stops the engine's clock at `now_ns` until release_clock(). SoftDevice::advance() sets the time in this way.
    void hold_clock(std::uint64_t now_ns) noexcept;
    void release_clock() noexcept { clock_held_ = false; }

    /// Whether the engine has packets that it has not taken. Called by a thread after it has announced its sleep: see
    /// Doorbell.
    [[nodiscard]] bool has_packets() const noexcept;
    /// Whether a QP waits for its next turn, or for room in a link.
    [[nodiscard]] bool has_turns() const noexcept { return !failed_ && !(tx_active_.empty() && rx_active_.empty()); }

    /// Called when the QP has something to send or to flush.
    void activate(SoftQp& qp) noexcept {
        tx_active_.push_back(qp);
        doorbell_->ring();
    }
    /// Moves the QP to ERR. Queued work is flushed as the engine moves.
    void enter_error(SoftQp& qp, bool keep_responses) noexcept;
    /// For UC and UD: moves the QP to SQE. In this state sends are flushed, and receives go on.
    void enter_send_error(SoftQp& qp) noexcept;
    /// Called before the QP goes back from SQE to RTS: flushes the sends that were posted until now.
    void leave_send_error(SoftQp& qp) noexcept;
    /// Raises the SRQ's event if a limit is armed and fewer receives than the limit are left.
    void check_limit(SoftSrq& srq) noexcept;

    // ---- engine_table.cc: the control side's part ----

    /// Called when the device has failed. From now on this engine does no work, and packets that other engines send to
    /// it are lost. Takes the lock.
    void fail() noexcept;

    /// Gives the QP its number. Returns false if the table is full.
    [[nodiscard]] bool add(SoftQp& qp);
    /// Takes the QP out of all lists and tables. Its CQEs stay in their CQs, unless the profile purges them.
    void remove(SoftQp& qp) noexcept;
    /// Drops all queued work and protocol state.
    void reset(SoftQp& qp) noexcept;
    void add_incoming(std::shared_ptr<LinkPair> link);
    void drop_incoming(std::uint32_t from) noexcept;
    void purge(SoftCq& cq, const SoftQp& qp) noexcept;
    /// Lets datagrams be sent over this link to its far end.
    void add_outgoing(std::shared_ptr<LinkPair> link);
    void drop_outgoing(std::uint32_t to) noexcept;
    void mark_incoming_gone() noexcept;
    void mark_incoming_attended() noexcept;
    void add(SoftCq& cq);
    void remove(SoftCq& cq) noexcept;

private:
    // engine.cc
    std::uint32_t send_turns() noexcept;
    std::uint32_t answer_turns() noexcept;
    std::uint32_t receive_requests(LinkPair& link) noexcept;
    std::uint32_t receive_responses(LinkPair& link) noexcept;
    std::uint32_t flush(SoftQp& qp) noexcept;
    std::uint32_t flush_sends(SoftQp& qp, std::uint32_t most) noexcept;
    void look_at_clock() noexcept;
    void kill_overrun_cqs() noexcept;
    [[nodiscard]] SoftQp* find(const Packet& packet) noexcept;
    void push_cqe(SoftCq& cq, SoftQp& qp, const ibv_wc& wc, std::uint32_t freed, bool receive) noexcept;
    [[nodiscard]] bool overruns(SoftCq& cq, const SoftQp& qp) noexcept;
    void spoil(ibv_wc& wc) noexcept;
    void keep_more(SoftCq& cq, std::uint32_t slot) noexcept;
    void notify(SoftCq& cq, const ibv_wc& wc, bool receive) noexcept;
    void run_moderation(std::uint64_t now_ns) noexcept;
    [[nodiscard]] const Packet* next_packet(Link& link) noexcept;
    [[nodiscard]] const Packet* packet_after_faults(Link& link) noexcept;
    [[nodiscard]] std::uint32_t flush_end(const SoftQp& qp) const noexcept;
    [[nodiscard]] bool path_open(const SoftQp& qp) const noexcept;
    [[nodiscard]] bool still_under_way(const SoftQp& qp, std::uint64_t now_ns) noexcept;
    void run_timer(SoftQp& qp, std::uint64_t now_ns) noexcept;

    // requester.cc
    std::uint32_t transmit(SoftQp& qp, bool& more) noexcept;
    [[nodiscard]] bool may_start(SoftQp& qp, SendWqe& wqe) noexcept;
    [[nodiscard]] ibv_wc_status check_local(SoftQp& qp, const SendWqe& wqe) noexcept;
    [[nodiscard]] bool start_local(SoftQp& qp, SendWqe& wqe) noexcept;
    void pass_local(SoftQp& qp) noexcept;
    void complete_local(SoftQp& qp) noexcept;
    enum class Sent : std::uint8_t { yes, link_full, failed };
    [[nodiscard]] Sent send_packet(SoftQp& qp, SendWqe& wqe) noexcept;
    void stop_at_cursor(SoftQp& qp, ibv_wc_status status) noexcept;
    void on_response(SoftQp& qp, const Packet& packet) noexcept;
    [[nodiscard]] bool acknowledge_before(SoftQp& qp, std::uint32_t psn) noexcept;
    void on_payload(SoftQp& qp, const Packet& packet) noexcept;
    void on_nak(SoftQp& qp, const Packet& packet) noexcept;
    void on_rnr_nak(SoftQp& qp, const Packet& packet) noexcept;
    void after_progress(SoftQp& qp) noexcept;
    void complete_send(SoftQp& qp, ibv_wc_status status) noexcept;
    void fail_send(SoftQp& qp, ibv_wc_status status) noexcept;
    void go_back(SoftQp& qp) noexcept;
    void retry(SoftQp& qp) noexcept;
    void arm_ack_timer(SoftQp& qp) noexcept;

    // unreliable.cc
    void on_unacknowledged(SoftQp& qp, const Packet& packet) noexcept;
    [[nodiscard]] bool begin_unacknowledged(SoftQp& qp, const Packet& packet) noexcept;
    void on_unacknowledged_send(SoftQp& qp, const Packet& packet) noexcept;
    void on_unacknowledged_write(SoftQp& qp, const Packet& packet) noexcept;
    void complete_sent(SoftQp& qp) noexcept;
    [[nodiscard]] Sent send_datagram(SoftQp& qp, SendWqe& wqe) noexcept;
    void on_datagram(SoftQp& qp, const Packet& packet) noexcept;
    void fail_unacknowledged(SoftQp& qp, ibv_wc_status status) noexcept;

    // responder.cc
    void on_request(SoftQp& qp, const Packet& packet) noexcept;
    void on_duplicate(SoftQp& qp, const Packet& packet) noexcept;
    void on_send(SoftQp& qp, const Packet& packet) noexcept;
    void on_write(SoftQp& qp, const Packet& packet) noexcept;
    void on_read(SoftQp& qp, const Packet& packet) noexcept;
    void on_atomic(SoftQp& qp, const Packet& packet) noexcept;
    void expect_next(SoftQp& qp, std::uint32_t packets) noexcept;
    void push_ack(SoftQp& qp, std::uint32_t psn) noexcept;
    void push_job(SoftQp& qp, const ResponseJob& job) noexcept;
    void refuse_rnr(SoftQp& qp) noexcept;
    void refuse(SoftQp& qp, Nak code) noexcept;
    void refuse_with_event(SoftQp& qp, Nak code) noexcept;
    void refuse_write(SoftQp& qp, bool takes_receive) noexcept;
    [[nodiscard]] bool take_receive(SoftQp& qp) noexcept;
    [[nodiscard]] bool take_shared_receive(SoftQp& qp) noexcept;
    /// The completion of a receive, made from the last packet of the message. For a datagram, the caller replaces some
    /// fields.
    [[nodiscard]] static ibv_wc received(const SoftQp& qp, const Packet& packet, ibv_wc_opcode opcode) noexcept {
        ibv_wc wc{};
        wc.opcode = opcode;
        wc.byte_len = qp.rx.offset;
        wc.src_qp = qp.dest_qpn;
        if ((packet.flags & kImmediate) != 0) {
            wc.wc_flags = IBV_WC_WITH_IMM;
            wc.imm_data = packet.imm;
        }
        return wc;
    }
    void complete_recv(SoftQp& qp, const ibv_wc& wc) noexcept;
    void fail_recv(SoftQp& qp, ibv_wc_status status) noexcept;
    [[nodiscard]] bool hold_payload(SoftQp& qp, const RecvWqe& wqe, const Packet& packet) noexcept;
    std::uint32_t answer(SoftQp& qp, bool& more) noexcept;
    [[nodiscard]] bool answer_read(SoftQp& qp, ResponseJob& job, bool& finished) noexcept;

    // hot: every move looks at these
    SpinLock lock_;
    bool failed_ = false;
    bool clock_held_ = false;
    bool timers_unset_ = false;  ///< a timer gets its deadline at the next look at the clock
    bool solicited_ = false;     ///< the request that is being handled asks for a solicited event
    std::uint32_t moves_to_clock_ = 0;
    QpList<&SoftQp::tx_hook> tx_active_;
    QpList<&SoftQp::rx_hook> rx_active_;
    QpList<&SoftQp::timer_hook> timers_;
    OwnLines<std::shared_ptr<LinkPair>> incoming_;
    std::uint32_t cqs_ = 0;  ///< number of CQs; overrun_cqs_ and moderated_cqs_ each have room for this many
    std::vector<SoftCq*> overrun_cqs_;
    std::vector<SoftCq*> moderated_cqs_;  ///< CQs that hold back an event
    const std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();
    // warm
    DeviceCore& core_;
    OwnLines<SoftQp*> qps_;
    /// Links for datagrams, indexed by the number of the engine at the far end.
    std::vector<std::shared_ptr<LinkPair>> outgoing_;
    std::uint64_t last_now_ns_ = 0;
    std::uint64_t next_deadline_ns_ = std::numeric_limits<std::uint64_t>::max();
    HeldPayload held_;  ///< payload that the next CQE will hold
    std::uint64_t garbage_ = 0x9e3779b97f4a7c15;
    // cold
    std::uint32_t id_ = 0;
    std::uint32_t last_index_ = 0;
    std::uint32_t qps_in_use_ = 0;
    std::shared_ptr<Fabric> fabric_;
};

}  // namespace pollcore::soft
