// A queue pair, as the worker sees it: its send queue and receive queue, its flow control, and its life.
//
// fail() may be called at any point of a step, so it only stops the queues and publishes the error. end_life() does all
// other work of a failure. The worker calls end_life() at the end of the step, when no request is half taken and no
// completion is half handled.
//
// A QP ends in this order (H1):
//   1. The control thread moves the QP to ERR.
//   2. leave() with Leaving::retire waits until every request in flight was flushed, or until a deadline.
//   3. The control thread destroys the QP.
//   4. leave() with Leaving::forget completes the remaining requests. Only then may the application reuse the buffer of
//      a request that the device did not complete (H2).
// A reset has the same order, but step 3 moves the QP to RESET, and step 4 is Leaving::renew, after which the QP goes
// on. After the loss of a device no flush comes, so Leaving::lose completes the requests that were not flushed.
//
// Thread safety: the control thread makes the object. It belongs to the worker from the command AddQp until the worker
// has answered ForgetQp.
#pragma once

#include <arpa/inet.h>

#include <algorithm>
#include <array>
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

/// How many requests one session may have in flight on a queue pair.
struct ShareOptions {
    std::uint32_t session = 0;  ///< the session's index at this worker
    std::uint32_t send_depth = 0;
    std::uint32_t recv_depth = 0;
};

/// On each queue pair, this many send-queue slots and CQEs are kept for the marker: when the marker completes, every
/// request before it has ended (D26).
inline constexpr std::uint32_t kMarkersPerQp = 1;

// The provider reads imm_data in network byte order. The application gave it in host byte order.
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
        QpState state = QpState::init;                ///< reset, init, or ready if the QP is in RTS already
        OpcodeMask opcodes = opcodes_of(QpType::rc);  ///< opcodes that the send queue accepts (D38)
        SendQueue::Options send;
        std::uint32_t recv_depth = 0;  ///< depth of the queue pair's own receive queue
        std::uint32_t sges_max = 1;
        std::uint32_t inline_max = 0;
        bool keeps_regions = true;  ///< a region that one of its requests names is in use (in_use.hpp)
        /// true if requests may take the short way of ordinary.cc; tests set false to compare the two ways
        bool ordinary = true;
        std::uint32_t device = 0;  ///< device whose lkeys the requests name
        /// The control thread's number of the protection domain. Windows, regions and (UD) address handles that the
        /// requests name belong to this domain.
        std::uint32_t pd = 0;
        std::uint32_t send_cq = 0;  ///< index of the CQ at this worker
        std::uint32_t recv_cq = 0;
        WorkerSrq* srq = nullptr;     ///< the shared receive queue; null if the queue pair has its own
        ibv_ah* marker_ah = nullptr;  ///< UD: address handle for the marker (D41)
        std::vector<ShareOptions> shares;
    };
    /// Failed work completions are counted for each status of the verbs; the last place counts all higher statuses.
    static constexpr std::size_t kErrorStatuses = static_cast<std::size_t>(Status::tm_rndv_incomplete) + 1;
    /// What the queue pair has done since it was made. Counts of 32 bits are modulo 2^32.
    struct Figures {
        std::uint32_t sends = 0;          ///< requests that were given to the provider
        std::uint64_t send_bytes = 0;     ///< bytes that they send, write or read; a hostile session may say more
        std::uint32_t receives = 0;       ///< messages that arrived, by receives or in a write ring
        std::uint64_t receive_bytes = 0;  ///< bytes that they brought
        std::array<std::uint32_t, kErrorStatuses> errors{};
    };
    explicit WorkerQp(const Options& options);
    WorkerQp(const WorkerQp&) = delete;
    WorkerQp& operator=(const WorkerQp&) = delete;

    // ---- Setup, before the worker gets the queue pair ----

    void set_flow(std::unique_ptr<Flow> flow) noexcept {
        flow_ = std::move(flow);
        asked_ = flow_.get();
    }
    void set_provider(ibv_qp& qp, const SendQueueLines& lines) noexcept;
    [[nodiscard]] const Options& options() const noexcept { return options_; }
    /// Any thread may call this. The values are not of one moment.
    [[nodiscard]] Figures figures() const noexcept;

    /// Connects the queue pair with its sessions and CQs. From now on the queue pair belongs to the worker.
    void add(Turn& turn, std::span<WorkerSession* const> sessions, WorkerCq& send_cq, WorkerCq& recv_cq) noexcept;

    // ---- Read while a request is taken or completed ----

    [[nodiscard]] QpHandle handle() const noexcept { return handle_; }
    /// Prefetches the cache lines of `qp` that a send and its completion read. `qp` may be null.
    static void prefetch(const WorkerQp* qp) noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(qp);
        __builtin_prefetch(reinterpret_cast<const void*>(address), 1);
        __builtin_prefetch(reinterpret_cast<const void*>(address + kCacheLine), 1);
    }
    /// The memory to which the provider posts, if it is known (D12).
    [[nodiscard]] const SendQueueLines& provider_lines() const noexcept { return provider_lines_; }
    /// Returns true only while the control thread neither changes nor destroys the provider's queue pair, so that the
    /// memory of provider_lines() may be read.
    [[nodiscard]] bool provider_at_rest() const noexcept { return provider_at_rest_; }
    /// Prefetches the cache line of `qp` that holds provider_lines(). `qp` may be null.
    static void prefetch_provider_lines(const WorkerQp* qp) noexcept {
        __builtin_prefetch(
            reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(qp) + offsetof(WorkerQp, provider_lines_)));
    }
    [[nodiscard]] OpcodeMask opcodes() const noexcept { return opcodes_; }
    /// Opcodes that may take the short way of ordinary.cc at the moment.
    [[nodiscard]] OpcodeMask ordinary() const noexcept { return ordinary_; }
    [[nodiscard]] std::uint32_t inline_max() const noexcept { return inline_max_; }
    [[nodiscard]] std::uint32_t sges_max() const noexcept { return options_.sges_max; }
    [[nodiscard]] bool datagram() const noexcept { return datagram_; }
    [[nodiscard]] bool keeps_regions() const noexcept { return options_.keeps_regions; }
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
    /// The flow control that decides about each request of the general way and learns of receives. Null if the queue
    /// pair has no flow control.
    [[nodiscard]] Flow* asked() const noexcept { return asked_; }
    [[nodiscard]] QpLife life() const noexcept { return life_; }
    [[nodiscard]] bool in_error() const noexcept { return pollcore::in_error(life_); }
    [[nodiscard]] bool parked() const noexcept { return parked_ != 0; }
    [[nodiscard]] Status cause() const noexcept { return cause_; }
    /// Status of a request that arrives when the queue pair is already in error.
    [[nodiscard]] Status unposted_status() const noexcept { return unposted_status_; }

    /// Counts messages that have arrived, and their bytes.
    [[gnu::always_inline]] void count_received(std::uint64_t bytes, std::uint32_t messages = 1) noexcept {
        receives_.add(messages);
        received_bytes_.add(bytes);
    }
    /// Counts a work completion that has failed.
    [[gnu::cold]] void count_error(ibv_wc_status status) noexcept {
        errors_[std::min(static_cast<std::size_t>(status), errors_.size() - 1)].add();
    }

    /// Takes an admitted request of the session for the send queue. Either posts the request or leaves it to the flow
    /// control. `slot` is the request's place in the session's ring.
    [[gnu::always_inline]] void take(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                     std::size_t slot, ibv_ah* ah) noexcept {
        // In error, this request must end after the requests that wait for the flow control. So the flow control is
        // still asked until those have ended.
        if (asked_ != nullptr && (life_ <= QpLife::failing || flush_held_) &&
            asked_->hold(turn, session, share, request, slot)) [[unlikely]] {
            return;
        }
        post(turn, session, share, request, session.submissions(), slot, ah);
    }
    /// Appends the request to the chain. If the queue pair is in error, adds the request to the in-flight table
    /// instead, where it ends after all requests before it. `slots` holds the request at `slot`, and its continuation
    /// slots behind it.
    template <class Slots>
    [[gnu::always_inline]] void post(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                     const Slots& slots, std::size_t slot, ibv_ah* ah) noexcept;
    /// Posts the chain. Ends the requests that the provider refuses.
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
    /// Ends a request that was not posted, after all posted requests before it have ended (D19).
    void leave_unposted(Turn& turn, const InFlightEntry& entry) noexcept;
    /// Ends at once a request that the provider refused. The request is in no in-flight table.
    void refuse(Turn& turn, const InFlightEntry& entry) noexcept;
    /// Ends a request that is in no in-flight table. `completion` is a success, or the failure that the device
    /// reported.
    void end_send(Turn& turn, const InFlightEntry& entry, Completion& completion) noexcept;
    void end_send_by_runtime(Turn& turn, const InFlightEntry& entry, Status status) noexcept;

    /// Ends all entries before the one at `offset` from the front, and then that entry, with the result of the work
    /// completion.
    void complete_send(Turn& turn, std::uint32_t offset, const ibv_wc& wc) noexcept;

    // ---- The queue pair's life ----

    /// Puts both queues of the queue pair into error, whatever its type (D42). `device_too` is true if the device has
    /// the QP in ERR. If it is false, the control thread will move the QP to ERR and then call unpark().
    void fail(Turn& turn, Status cause, bool device_too = true) noexcept;
    /// Puts the queue pair into error, because the peer broke the rules of the flow control, or because the flow
    /// control cannot go on.
    void fail_flow(Turn& turn, FlowFault fault) noexcept;
    [[nodiscard]] bool completes_on(const WorkerCq& cq) const noexcept { return send_cq_ == &cq || recv_cq_ == &cq; }
    /// Called when a CQ of the queue pair has failed and gives no more completions (D46).
    void lose_cq(Turn& turn) noexcept;
    /// Arranges a turn() at the end of the step, which calls end_life() if the queue pair is in error, even if
    /// end_life() was called before.
    void look_again(Turn& turn) noexcept {
        look_again_ = true;
        turn.lives.add(*this);
    }
    /// The outcome of a leave() that is complete.
    struct Left {
        std::uint64_t command = 0;
        AnswerKind kind{};
        bool forgotten = false;
    };
    /// Does the queue pair's part of the step. Called while the queue pair is in Turn::lives. `may_leave` is true if
    /// the answer ring has room for the answer to leave().
    [[nodiscard]] std::optional<Left> turn(Turn& turn, bool may_leave) noexcept;
    /// Returns true if the queue pair must stay in Turn::lives.
    [[nodiscard]] bool waits_for_turn() const noexcept { return look_again_ || leave_.way != Leaving::none; }

    void park() noexcept;
    /// The queue pair goes on in `state`.
    void unpark(Turn& turn, QpState state, Status cause, bool device_lags) noexcept;
    void start_flow(Turn& turn, const FlowStart& start) noexcept { flow_->start(turn, start); }

    /// Ways to take a queue pair out of service. The worker answers the command when the queue pair is out of service.
    enum class Leaving : std::uint8_t { none, retire, forget, renew, lose };
    struct Leave {
        Leaving way = Leaving::none;
        std::uint64_t command = 0;
        Status cause = Status::qp_closed;
        bool device_lags = false;    ///< the device may not have the QP in ERR yet
        std::uint64_t deadline = 0;  ///< retire
        /// retire, if only receives remain: the worker stops waiting after this many cycles without a completed
        /// receive. 0 means that it waits until the deadline
        std::uint32_t quiet = 0;
        std::uint32_t life = 0;         ///< renew: see life_of()
        QpState state = QpState::init;  ///< renew
    };
    void leave(Turn& turn, const Leave& how) noexcept;
    /// Publishes the state and limits of the queue pair to its sessions.
    void publish_record() noexcept;

    // A send and its completion read the two cache lines that begin here (D12).
    ChainLink<WorkerQp> link;

private:
    static constexpr std::uint16_t kMarkerTries = 1000;

    /// The only writer of life_. Also updates the members that the hot loops read.
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
    bool advance_to(QpState state) noexcept;
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
    QpLife life_ = QpLife::reset;
    bool datagram_;
    std::uint16_t inline_max_;
    OpcodeMask opcodes_;
    OpcodeMask ordinary_ = 0;
    SmallCounter receives_;
    Counter received_bytes_;
    // Read by receives.
    RecvQueue recvs_;
    // Prefetched before a burst, if there are many queue pairs.
    SendQueueLines provider_lines_;
    bool provider_at_rest_ = false;  // the QP is ready and not parked, so the control thread does not change it
    // Cold.
    std::unique_ptr<Flow> flow_;  // never null
    std::uint16_t parked_ = 0;    // how many park() calls have no unpark() yet
    Status cause_ = Status::success;
    bool cover_wanted_ = false;  // a marker must be posted as soon as that is possible
    bool marker_in_flight_ = false;
    std::uint16_t markers_refused_ = 0;  // refusals in a row
    bool device_lags_ = false;           // in error, but the device may not have the QP in ERR, so no marker is posted
    // Requests that wait for the flow control do not end yet, because the peer may still act on them. Only if
    // device_lags_ is set.
    bool flush_held_ = false;
    Status leftover_status_ = Status::qp_closed;     // for requests that the device did not complete
    Status unposted_status_ = Status::wr_flush_err;  // for requests that arrived when the queue pair was in error
    std::uint16_t epoch_;
    std::uint32_t qp_num_ = 0;
    Options options_;
    std::vector<WorkerSession*> sessions_;  // in the order of Options::shares
    WorkerCq* send_cq_ = nullptr;
    WorkerCq* recv_cq_ = nullptr;
    // Used while the queue pair is taken out of service.
    Leave leave_;
    bool look_again_ = false;
    bool timed_out_ = false;
    std::uint32_t recvs_left_ = 0;
    std::uint64_t quiet_since_ = 0;  // when recvs_left_ changed last
    WorkerCq::Mark send_mark_;
    WorkerCq::Mark recv_mark_;
    std::array<SmallCounter, kErrorStatuses> errors_;

public:
    Due due;  ///< this queue pair's place in Turn::lives
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
        turn.chains.ring(turn);  // a bind is posted alone, after the requests that were submitted before it (D24)
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
    std::uint64_t bytes = request.sge.length;
    if (is_inline) {
        wr.sg_list = gather_inline(turn.chains, request, slots, slot, inline_bytes);
        wr.num_sge = 1;
    } else {
        const std::span<ibv_sge> sges = gather(turn.chains, request, slots, slot);
        wr.sg_list = sges.data();
        wr.num_sge = request.num_sge;
        if (sges.size() > 1) {
            sends_.entries().push_more_keys(sges.subspan(1));
            for (const ibv_sge& sge : sges.subspan(1)) {
                bytes += sge.length;
            }
        }
    }
    if (framed) [[unlikely]] {
        if (!is_inline) {
            (void)turn.chains.take_sges(1);
        }
        asked_->frame(wr, request, position);
    }
    sends_.append(wr);
    sends_.count(1, bytes);
    turn.counters.sends.add();
    turn.chains.sends.add(*this);
}

}  // namespace pollcore
