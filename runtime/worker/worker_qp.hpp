// The worker's end of a queue pair: its queues, its flow control, and its life.
//
// fail() may be called in the middle of anything, and only marks the queue pair. All else is left to end_life(), which
// the worker calls at the end of the step, when nothing is half taken or half completed.
//
// A QP ends in this order (H1), by leave(): the control thread puts it into ERR; Leaving::retire waits here until
// everything in flight was flushed, or until a deadline; the control thread destroys the QP; Leaving::forget completes
// its remaining requests. Only then may the buffer of a request that no device completed be reused (H2). A reset keeps
// this order, but the QP is RESET instead of destroyed, and Leaving::renew lets it go on. A QP whose device was lost
// has no flush to wait for; Leaving::lose completes its requests.
//
// Thread safety: made by the control thread, the worker's from add_qp until the answer to forget_qp.
#pragma once

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <infiniband/verbs.h>

#include "base/life.hpp"
#include "device/send_queue_lines.hpp"
#include "peer/control_block.hpp"
#include "pollcore/queue_pair.hpp"
#include "worker/flow.hpp"
#include "worker/gather.hpp"
#include "worker/qp_life.hpp"
#include "worker/recv_queue.hpp"
#include "worker/send_queue.hpp"
#include "worker/turn.hpp"
#include "worker/worker_cq.hpp"
#include "worker/worker_session.hpp"

namespace pollcore {

class WorkerSrq;

/// What a session may post to a queue pair.
struct ShareOptions {
    std::uint32_t session = 0;  ///< index at this worker
    std::uint32_t send_depth = 0;
    std::uint32_t recv_depth = 0;
};

/// Send-queue slots and CQEs that the runtime needs for itself on each queue pair: a marker, whose completion says that
/// everything before it has ended (D26).
inline constexpr std::uint32_t kMarkersPerQp = 1;

// The provider reads imm_data in network order; the application gave a number (row 7 of the semantics).
inline void fill(ibv_send_wr& wr, const WorkRequest& request) noexcept {
    wr.opcode = static_cast<ibv_wr_opcode>(request.opcode);
    if (request.opcode >= Opcode::local_inv) [[unlikely]] {
        wr.invalidate_rkey = request.invalidate_rkey;
        return;
    }
    if (is_atomic(request.opcode)) {
        wr.wr.atomic.remote_addr = request.remote_addr;
        wr.wr.atomic.compare_add = request.compare_add;
        wr.wr.atomic.swap = request.swap;
        wr.wr.atomic.rkey = request.rkey;
        return;
    }
    wr.wr.rdma.remote_addr = request.remote_addr;
    wr.wr.rdma.rkey = request.rkey;
    wr.imm_data = has_imm(request.opcode) ? htonl(request.imm_data) : 0;
}

[[gnu::noinline]] inline void fill_datagram(ibv_send_wr& wr, const WorkRequest& request, ibv_ah* ah) noexcept {
    wr.opcode = static_cast<ibv_wr_opcode>(request.opcode);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = request.ud.remote_qpn;
    wr.wr.ud.remote_qkey = request.remote_qkey;
    wr.imm_data = has_imm(request.opcode) ? htonl(request.imm_data) : 0;
}

class alignas(kCacheLine) WorkerQp {
public:
    struct Options {
        QpHandle handle;
        std::uint16_t epoch = 0;                      ///< Life::epoch
        bool datagram = false;                        ///< UD
        bool ready = false;                           ///< it is in RTS already (D41)
        OpcodeMask opcodes = opcodes_of(QpType::rc);  ///< opcodes that its send queue takes (D38)
        SendQueue::Options send;
        std::uint32_t recv_depth = 0;  ///< of its own receive queue
        std::uint32_t sges_max = 1;
        std::uint32_t inline_max = 0;
        bool ordinary = true;      ///< false: all its requests go the general way, so that the two ways can be compared
        std::uint32_t device = 0;  ///< device whose keys its requests name
        /// Protection domain of the windows, regions and (UD) address handles that its requests name; the control
        /// thread's number.
        std::uint32_t pd = 0;
        std::uint32_t send_cq = 0;  ///< index at this worker
        std::uint32_t recv_cq = 0;
        WorkerSrq* srq = nullptr;     ///< source of its receives; null: it has a receive queue of its own
        ibv_ah* marker_ah = nullptr;  ///< UD: the marker needs one, too (D41)
        std::vector<ShareOptions> shares;
    };
    explicit WorkerQp(const Options& options);
    WorkerQp(const WorkerQp&) = delete;
    WorkerQp& operator=(const WorkerQp&) = delete;

    // ---- Wiring, before the worker has it ----

    void set_flow(std::unique_ptr<Flow> flow) noexcept {
        flow_ = std::move(flow);
        asked_ = flow_.get();
    }
    void set_provider(ibv_qp& qp, const SendQueueLines& lines) noexcept;
    [[nodiscard]] const Options& options() const noexcept { return options_; }

    /// Connects it with its sessions and CQs. The worker has it from now on.
    void add(Turn& turn, std::span<WorkerSession* const> sessions, WorkerCq& send_cq, WorkerCq& recv_cq) noexcept;

    // ---- Asked on the way of a request ----

    [[nodiscard]] QpHandle handle() const noexcept { return handle_; }
    /// Prefetches the lines that a send and its completion look at. `qp` may be null.
    static void prefetch(const WorkerQp* qp) noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(qp);
        __builtin_prefetch(reinterpret_cast<const void*>(address), 1);
        __builtin_prefetch(reinterpret_cast<const void*>(address + kCacheLine), 1);
    }
    /// Where its provider posts, if that is known (D12).
    [[nodiscard]] const SendQueueLines& provider_lines() const noexcept { return provider_lines_; }
    /// True: the memory of provider_lines() may be read, since the control thread neither changes nor destroys the
    /// provider's queue pair.
    [[nodiscard]] bool provider_at_rest() const noexcept { return provider_at_rest_; }
    /// Prefetches the line of `qp` that holds provider_lines(). `qp` may be null.
    static void prefetch_provider_lines(const WorkerQp* qp) noexcept {
        __builtin_prefetch(
            reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(qp) + offsetof(WorkerQp, provider_lines_)));
    }
    [[nodiscard]] OpcodeMask opcodes() const noexcept { return opcodes_; }
    /// Opcodes that may go by ordinary.cc at the moment.
    [[nodiscard]] OpcodeMask ordinary() const noexcept { return ordinary_; }
    [[nodiscard]] std::uint32_t inline_max() const noexcept { return inline_max_; }
    [[nodiscard]] std::uint32_t sges_max() const noexcept { return options_.sges_max; }
    [[nodiscard]] bool datagram() const noexcept { return datagram_; }
    [[nodiscard]] std::uint32_t pd() const noexcept { return options_.pd; }
    [[nodiscard]] std::uint32_t device() const noexcept { return options_.device; }
    [[nodiscard]] std::uint32_t qp_num() const noexcept { return qp_num_; }
    [[nodiscard]] WorkerSrq* srq() const noexcept { return options_.srq; }
    [[nodiscard]] Gate& gate() noexcept { return gate_; }
    [[nodiscard]] SendQueue& sends() noexcept { return sends_; }
    [[nodiscard]] const SendQueue& sends() const noexcept { return sends_; }
    [[nodiscard]] RecvQueue& recvs() noexcept { return recvs_; }
    [[nodiscard]] const RecvQueue& recvs() const noexcept { return recvs_; }
    [[nodiscard]] Flow& flow() const noexcept { return *flow_; }
    /// The flow control, which is asked about each request that goes the general way, and told of receives; null: there
    /// is none.
    [[nodiscard]] Flow* asked() const noexcept { return asked_; }
    [[nodiscard]] QpLife life() const noexcept { return life_; }
    [[nodiscard]] bool in_error() const noexcept { return pollcore::in_error(life_); }
    [[nodiscard]] bool parked() const noexcept { return parked_ != 0; }
    [[nodiscard]] Status cause() const noexcept { return cause_; }
    /// Status of requests that come when it is in error already.
    [[nodiscard]] Status unposted_status() const noexcept { return unposted_status_; }

    /// Takes a session's admitted request for the send queue, and posts it or gives it to the flow control. `slot`: its
    /// place in the session's ring.
    [[gnu::always_inline]] void take(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                     std::size_t slot, ibv_ah* ah) noexcept {
        // Flow control is asked in error, too, until the waiting requests have ended: this one ends behind them.
        if (asked_ != nullptr && (life_ <= QpLife::failing || flush_held_) &&
            asked_->hold(turn, session, share, request, slot)) [[unlikely]] {
            return;
        }
        post(turn, session, share, request, session.submissions(), slot, ah);
    }
    /// Puts a request into the chain, or, in error, among the requests that end in their turn. `slots` has the request
    /// in `slot`, and its continuations.
    template <class Slots>
    [[gnu::always_inline]] void post(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                     const Slots& slots, std::size_t slot, ibv_ah* ah) noexcept;
    /// Posts the chain. Requests that the provider refuses end.
    [[gnu::always_inline]] void post_sends(Turn& turn) noexcept {
        if (ibv_send_wr* const chain = sends_.take_chain(); chain != nullptr) [[likely]] {
            if (sends_.coalesces()) [[unlikely]] {
                sends_.coalesce(*chain);
            }
            if (ibv_send_wr* const bad = sends_.post(turn, chain); bad != nullptr) [[unlikely]] {
                end_refused(turn, chain, bad);
            }
        }
    }
    /// Ends a request that was not posted, in its turn behind the posted ones (D19).
    void leave_unposted(Turn& turn, const InFlightEntry& entry) noexcept;
    /// A request that the provider refused, and that is in no table, ends at once.
    void refuse(Turn& turn, const InFlightEntry& entry) noexcept;
    /// A request that is in no table ends with success, or as the device said.
    void end_send(Turn& turn, const InFlightEntry& entry, Completion& completion) noexcept;
    void end_send_by_runtime(Turn& turn, const InFlightEntry& entry, Status status) noexcept;

    /// Ends the entry at `offset` from the front as the work completion says, and all entries before it.
    void complete_send(Turn& turn, std::uint32_t offset, const ibv_wc& wc) noexcept;

    // ---- Its life ----

    /// The queue pair is in error from here on, as a whole, whatever its type (D42). `device_too`: the device has it in
    /// ERR. Else the control thread will move it there, and says so by unpark().
    void fail(Turn& turn, Status cause, bool device_too = true) noexcept;
    /// Its peer broke the agreement, or the flow control cannot go on.
    void fail_flow(Turn& turn, FlowFault fault) noexcept;
    [[nodiscard]] bool completes_on(const WorkerCq& cq) const noexcept { return send_cq_ == &cq || recv_cq_ == &cq; }
    /// One of its CQs has failed, and gives no more completions (D46).
    void lose_cq(Turn& turn) noexcept;
    /// Asks for a call of end_life(), or for another one.
    void look_again(Turn& turn) noexcept {
        look_again_ = true;
        turn.lives.add(*this);
    }
    /// The result of leave(), once it is over.
    struct Left {
        std::uint64_t command = 0;
        AnswerKind kind{};
        bool forgotten = false;
    };
    /// The queue pair's part of the step, while it stands in Turn::lives. `may_leave`: its command can be answered.
    [[nodiscard]] std::optional<Left> turn(Turn& turn, bool may_leave) noexcept;
    /// It must stay in Turn::lives.
    [[nodiscard]] bool waits_for_turn() const noexcept { return look_again_ || leave_.way != Leaving::none; }

    void park() noexcept;
    /// `state`: the state into which the control thread has moved it.
    void unpark(Turn& turn, QpState state, Status cause, bool device_lags) noexcept;
    void start_flow(Turn& turn, const FlowStart& start) noexcept { flow_->start(turn, start); }

    /// Ways out of service. Each is answered when it is over.
    enum class Leaving : std::uint8_t { none, retire, forget, renew, lose };
    struct Leave {
        Leaving way = Leaving::none;
        std::uint64_t command = 0;
        Status cause = Status::qp_closed;
        bool device_lags = false;    ///< its device may not have it in ERR yet
        std::uint64_t deadline = 0;  ///< retire
        std::uint32_t quiet = 0;  ///< retire: cycles after which receives that nothing flushes are given up; 0: never
        std::uint32_t life = 0;   ///< renew: see life_of()
        QpState state = QpState::init;  ///< renew
    };
    void leave(Turn& turn, const Leave& how) noexcept;
    /// Publishes to its sessions what they may know of it.
    void publish_record() noexcept;

    // A send and its completion look at the two lines that begin here (D12).
    ChainLink<WorkerQp> link;

private:
    static constexpr std::uint16_t kMarkerTries = 1000;

    /// The only writer of life_. Also updates what the hot loops ask.
    void happens(QpEvent event) noexcept {
        life_ = after(life_, event);
        choose_way();
    }
    void choose_way() noexcept;
    void end_life(Turn& turn) noexcept;
    [[nodiscard]] std::optional<Left> advance(Turn& turn) noexcept;
    [[nodiscard]] bool drained(Turn& turn) noexcept;
    [[nodiscard]] bool only_late_receives(const Turn& turn) noexcept;
    void complete_leftovers(Turn& turn) noexcept;
    void begin_life(Turn& turn, Life life, QpState state) noexcept;
    void drop(Turn& turn) noexcept;
    void open_shares() noexcept;
    void cover(Turn& turn) noexcept;
    void post_marker(Turn& turn) noexcept;

    void pass_over(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc, bool& flushed) noexcept;
    void complete_own(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept;
    [[gnu::always_inline]] void complete(Turn& turn, const InFlightEntry& entry, Completion& completion) noexcept;
    [[gnu::always_inline]] void retire(Turn& turn, const InFlightEntry& entry) noexcept;
    void complete_unposted(Turn& turn) noexcept;
    void end_waiting(Turn& turn, WaitingRequests& waiting) noexcept;
    void end_refused(Turn& turn, ibv_send_wr* chain, ibv_send_wr* bad) noexcept;
    void break_off(Turn& turn, ibv_send_wr* chain, FlowFault fault) noexcept;
    void post_other(Turn& turn, Share& share, const WorkRequest& request) noexcept;

    SendQueue sends_;
    Flow* asked_ = nullptr;
    QpHandle handle_;
    Gate gate_;
    OpcodeMask opcodes_;
    OpcodeMask ordinary_ = 0;
    std::uint16_t inline_max_;
    QpLife life_ = QpLife::init;
    bool datagram_;
    // A receive looks at this, too.
    RecvQueue recvs_;
    // With many queue pairs a burst prefetches these before it begins.
    SendQueueLines provider_lines_;
    bool provider_at_rest_ = false;  // ready and not parked: nobody else changes the provider's queue pair
    // Cold.
    std::unique_ptr<Flow> flow_;  // never null
    std::uint16_t parked_ = 0;    // nesting
    Status cause_ = Status::success;
    bool cover_wanted_ = false;  // a marker is to follow when one can be posted
    bool marker_in_flight_ = false;
    std::uint16_t markers_refused_ = 0;           // in a row
    bool device_lags_ = false;                    // in error, but its device may not have it in ERR: nothing is posted
    bool flush_held_ = false;                     // device_lags_, and the peer may still act on waiting requests
    Status leftover_status_ = Status::qp_closed;  // of requests that no device completed
    Status unposted_status_ = Status::wr_flush_err;  // of requests that came when it was in error
    std::uint16_t epoch_;
    std::uint32_t qp_num_ = 0;
    Options options_;
    std::vector<WorkerSession*> sessions_;  // by share
    WorkerCq* send_cq_ = nullptr;
    WorkerCq* recv_cq_ = nullptr;
    // On its way out of service.
    Leave leave_;
    bool look_again_ = false;
    bool timed_out_ = false;
    std::uint32_t recvs_left_ = 0;
    std::uint64_t quiet_since_ = 0;  // when recvs_left_ changed last
    WorkerCq::Mark send_mark_;
    WorkerCq::Mark recv_mark_;

public:
    Due due;  ///< of Turn::lives
};

template <class Slots>
[[gnu::always_inline]] inline void WorkerQp::post(Turn& turn, WorkerSession& session, Share& share,
                                                  const WorkRequest& request, const Slots& slots, std::size_t slot,
                                                  ibv_ah* ah) noexcept {
    const bool is_inline = (request.flags & kInline) != 0;
    const bool signaled = (request.flags & kSignaled) != 0;
    const bool framed = asked_ != nullptr && asked_->frames() && is_send(request.opcode);
    const std::size_t inline_bytes = !is_inline ? 0
                                     : framed   ? asked_->framed_bytes(request.sge.length)
                                                : inline_room(request.sge.length);
    if (!turn.chains.room(std::size_t{request.num_sge} + framed, inline_bytes) || request.opcode == Opcode::bind_mw)
        [[unlikely]] {
        turn.chains.ring(turn);  // a bind goes by itself, behind requests that were submitted before it (D24)
    }
    const std::uint32_t position = sends_.entries().next_position();
    InFlightEntry& entry = sends_.entries().push();
    entry =
        entry_of(session, request, InFlightEntry::known(request.flags), is_inline ? std::uint8_t{0} : request.num_sge);
    if (ah != nullptr) [[unlikely]] {
        entry.ah = request.ud.ah();
    }
    if (request.submitted_at != 0) [[unlikely]] {
        session.begin_sample(turn, entry, request.submitted_at);
    }
    if (in_error() || request.opcode == Opcode::bind_mw) [[unlikely]] {
        post_other(turn, share, request);
        return;
    }
    const bool signal = signaled || sends_.must_signal() || session.must_signal(share);
    if (signal && !signaled) {
        turn.counters.forced_signals.add();
    }
    sends_.count_signal(signal);

    ibv_send_wr& wr = turn.chains.take_send_wr();
    wr.wr_id = WrId{handle_, false, position}.pack();
    wr.send_flags = (request.flags & (kFence | kSolicited | kInline)) | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u);
    if (ah != nullptr) [[unlikely]] {
        fill_datagram(wr, request, ah);
    } else if (!framed) [[likely]] {
        fill(wr, request);
    }
    if (is_inline) {
        wr.sg_list = gather_inline(turn.chains, request, slots, slot, inline_bytes);
        wr.num_sge = 1;
    } else {
        const std::span<ibv_sge> sges = gather(turn.chains, request, slots, slot);
        wr.sg_list = sges.data();
        wr.num_sge = request.num_sge;
        if (sges.size() > 1) {
            sends_.entries().push_more_keys(sges.subspan(1));
        }
    }
    if (framed) [[unlikely]] {
        if (!is_inline) {
            (void)turn.chains.take_sges(1);
        }
        asked_->frame(wr, request, position);
    }
    sends_.append(wr);
    turn.counters.sends.add();
    turn.chains.sends.add(*this);
}

}  // namespace pollcore
