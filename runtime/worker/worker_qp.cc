#include "worker/worker_qp.hpp"

#include <utility>

#include "base/life.hpp"
#include "base/planted.hpp"
#include "session/completion_opcode.hpp"
#include "worker/worker_srq.hpp"

namespace pollcore {

WorkerQp::WorkerQp(const Options& options)
    : sends_(options.send),
      handle_(options.handle),
      opcodes_(options.opcodes),
      inline_max_(static_cast<std::uint16_t>(options.inline_max)),
      datagram_(options.datagram),
      recvs_({.depth = std::max(options.recv_depth, 1u),
              .sges_max = options.sges_max,
              .device = options.device,
              .pd = options.pd},
             *this),
      flow_(std::make_unique<NoFlow>(*this)),
      epoch_(options.epoch),
      options_(options),
      sessions_(options.shares.size()) {
    static_assert(offsetof(WorkerQp, link) == 0 && offsetof(WorkerQp, recvs_) == 2 * kCacheLine,
                  "what a send and its completion look at");
    recvs_.begin_life(handle_);
    if (options.ready) {
        happens(QpEvent::activate);
    }
}

void WorkerQp::set_provider(ibv_qp& qp, const SendQueueLines& lines) noexcept {
    sends_.set_provider(&qp);
    provider_lines_ = lines;
    recvs_.set_provider(&qp);
    qp_num_ = qp.qp_num;
}

void WorkerQp::add(Turn& turn, std::span<WorkerSession* const> sessions, WorkerCq& send_cq,
                   WorkerCq& recv_cq) noexcept {
    for (std::size_t i = 0; i < options_.shares.size(); ++i) {
        sessions_[i] = sessions[options_.shares[i].session];
    }
    send_cq_ = &send_cq;
    recv_cq_ = &recv_cq;
    if (datagram_) {
        recv_cq_->add_datagram_qp();
    }
    if (options_.srq != nullptr) {
        options_.srq->add(*this);
    }
    choose_way();
    open_shares();
    flow_->begin_life(turn);
    publish_record();
}

// Whatever of this changes has to ask again.
void WorkerQp::choose_way() noexcept {
    provider_at_rest_ = life_ == QpLife::ready && parked_ == 0;
    const bool ordinary = provider_at_rest_ && !flow_->frames() && !datagram_ && options_.ordinary;
    ordinary_ = ordinary ? static_cast<OpcodeMask>(opcodes_ & RequestHead::kOrdinary) : OpcodeMask{0};
}

void WorkerQp::open_shares() noexcept {
    for (std::size_t i = 0; i < options_.shares.size(); ++i) {
        sessions_[i]->open_share(*this, handle_, options_.shares[i].send_depth, options_.shares[i].recv_depth);
    }
}

void WorkerQp::publish_record() noexcept {
    const Flow::Limits longest = flow_->limits();
    for (std::size_t i = 0; i < options_.shares.size(); ++i) {
        const ShareOptions& share = options_.shares[i];
        sessions_[i]->publish_limits(
            handle_.index, {.send_depth = share.send_depth, .recv_depth = share.recv_depth, .opcodes = opcodes_},
            {longest.message_max, longest.rendezvous_max});
        const auto flags = static_cast<std::uint8_t>((share.recv_depth > 0 ? QpStatusWord::kReceives : 0) |
                                                     (asked_ != nullptr ? QpStatusWord::kFlow : 0) |
                                                     (longest.sums ? QpStatusWord::kSums : 0));
        sessions_[i]->publish_status(handle_.index, {.generation = handle_.generation,
                                                     .epoch = epoch_,
                                                     .state = state_of(life_),
                                                     .cause = cause_,
                                                     .sges_max = static_cast<std::uint8_t>(options_.sges_max),
                                                     .flags = flags,
                                                     .inline_max = inline_max_});
    }
}

// ---- Sends go in ----

/// The provider refused `bad` of the chain. What stands before it was posted; what follows it gets its own chance,
/// since it may belong to another session.
[[gnu::cold]] void WorkerQp::end_refused(Turn& turn, ibv_send_wr* chain, ibv_send_wr* bad) noexcept {
    bool posted = false;  // something of it
    while (bad != nullptr) {
        ibv_send_wr* const next = bad->next;
        posted = posted || bad != chain;
        const InFlightEntry entry = sends_.take_refused(turn, *bad);
        const bool others_wait = next == nullptr && posted && sends_.has_covered();  // for the signal that this one had
        const bool breaks = flow_->refused(entry.opcode, next != nullptr) || others_wait;
        if (breaks) {
            break_off(turn, next, others_wait ? FlowFault::signal_refused : FlowFault::post_refused);
        }
        end_send_by_runtime(turn, entry, Status::post_refused);
        complete_unposted(turn);
        if (breaks) {
            return;
        }
        chain = next;
        bad = next != nullptr ? sends_.post(turn, next) : nullptr;
    }
}

/// What stands in the chain does not go either.
[[gnu::cold]] void WorkerQp::break_off(Turn& turn, ibv_send_wr* chain, FlowFault fault) noexcept {
    for (const ibv_send_wr* wr = chain; wr != nullptr; wr = wr->next) {
        InFlightTable& entries = sends_.entries();
        InFlightEntry& entry =
            entries.at(entries.head_position() + entries.offset_of(WrId::unpack(wr->wr_id).position));
        entry.leave_unposted(Status::wr_flush_err);
    }
    fail_flow(turn, fault);
}

/// The newest entry is of a bind, or of a request that came in error: neither is chained.
[[gnu::cold, gnu::noinline]] void WorkerQp::post_other(Turn& turn, Share& share, const WorkRequest& request) noexcept {
    InFlightEntry entry = sends_.entries().pop_back();
    if (request.opcode == Opcode::bind_mw) {
        turn.binds.begin(entry, request);
    }
    if (in_error()) {
        leave_unposted(turn, entry);
        return;
    }
    const bool signaled = entry.signaled();
    const bool signal = signaled || sends_.must_signal() || entry.session->must_signal(share);
    turn.counters.forced_signals.add(signal && !signaled);
    sends_.count_signal(signal);
    turn.counters.sends.add();
    const unsigned flags = (request.flags & kFence) | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u);
    const bool posted =
        sends_.post_now(turn, handle_, entry, [&](ibv_qp* qp, std::uint64_t wr_id, InFlightEntry& pushed) {
            return turn.binds.post(qp, wr_id, flags, pushed, request, handle_);
        });
    if (!posted) {
        sends_.signal_next();
        refuse(turn, entry);
    }
}

/// What waits ends behind everything that was posted.
[[gnu::cold]] void WorkerQp::end_waiting(Turn& turn, WaitingRequests& waiting) noexcept {
    while (!waiting.empty()) {
        const WorkRequest request = waiting.copy(0);
        InFlightEntry entry = entry_of(waiting.front_session(), request, InFlightEntry::known(request.flags), 0);
        if (request.opcode == Opcode::bind_mw) {
            turn.binds.let_go(request);
            turn.binds.begin(entry, request);
        }
        waiting.pop(slots_of(request));
        leave_unposted(turn, entry);
    }
}

[[gnu::cold, gnu::noinline]] void WorkerQp::leave_unposted(Turn& turn, const InFlightEntry& entry) noexcept {
    InFlightEntry& unposted = sends_.entries().push();
    unposted = entry;
    unposted.leave_unposted(unposted_status_);
    complete_unposted(turn);
    look_again(turn);  // a marker is to follow, if anything is before it
}

[[gnu::cold, gnu::noinline]] void WorkerQp::refuse(Turn& turn, const InFlightEntry& entry) noexcept {
    (void)flow_->refused(entry.opcode, false);
    end_send_by_runtime(turn, entry, Status::post_refused);
    complete_unposted(turn);
}

// ---- And come out ----

/// `completion` holds what the device said; the rest comes from the entry.
[[gnu::always_inline]] inline void WorkerQp::complete(Turn& turn, const InFlightEntry& entry,
                                                      Completion& completion) noexcept {
    completion.qp = handle_;
    completion.opcode = kSendCompletions[static_cast<std::uint8_t>(entry.opcode)];
    if (entry.opcode == Opcode::bind_mw) [[unlikely]] {
        turn.binds.end(entry, completion.status);
        if (completion.ok()) {
            completion.window_rkey = entry.new_rkey;
        }
    }
    entry.session->complete(turn, handle_.index, entry, completion, false, nullptr);
}

/// An unsignaled request has succeeded.
[[gnu::always_inline]] inline void WorkerQp::retire(Turn& turn, const InFlightEntry& entry) noexcept {
    if (entry.opcode == Opcode::bind_mw) [[unlikely]] {
        turn.binds.end(entry, Status::success);
    }
    entry.session->retire(turn, handle_.index, entry);
}

[[gnu::noinline]] void WorkerQp::end_send(Turn& turn, const InFlightEntry& entry, Completion& completion) noexcept {
    if (completion.ok() && !entry.signaled()) {
        retire(turn, entry);
    } else {
        complete(turn, entry, completion);
    }
}

[[gnu::cold, gnu::noinline]] void WorkerQp::end_send_by_runtime(Turn& turn, const InFlightEntry& entry,
                                                                Status status) noexcept {
    Completion completion;
    completion.status = status;
    completion.flags = kByRuntime;
    complete(turn, entry, completion);
}

void WorkerQp::complete_unposted(Turn& turn) noexcept {
    InFlightTable& entries = sends_.entries();
    while (!entries.empty() && !entries.front().with_provider()) {
        const InFlightEntry& entry = entries.pop();
        if (entry.kind == InFlightEntry::Kind::unposted) {
            end_send_by_runtime(turn, entry, entry.status);
        }
    }
}

/// A request without a completion of its own from the provider: one behind it completes as `wc` says. `flushed`: one
/// before it was flushed.
[[gnu::always_inline]] inline void WorkerQp::pass_over(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc,
                                                       bool& flushed) noexcept {
    const bool covered = entry.kind == InFlightEntry::Kind::covered;
    // Signaled ones complete themselves and in order; one that is passed over has been lost by the provider, and the
    // application must not wait for it for ever. Any other that stands behind a failure was lost, too, since what is
    // flushed completes, signaled or not.
    if (!covered && (entry.signaled() || sends_.failed())) [[unlikely]] {
        sends_.fail();
        if (entry.opcode == Opcode::bind_mw && wc.status == IBV_WC_SUCCESS) {
            turn.binds.take_over_key(entry);
        }
        end_send_by_runtime(turn, entry, Status::general_err);
    } else if (flushed || (covered && wc.status == IBV_WC_WR_FLUSH_ERR)) [[unlikely]] {
        flushed = true;  // a flush may stand behind a failure whose completion was lost, so it proves no success
        end_send_by_runtime(turn, entry, Status::wr_flush_err);
    } else if (covered) {
        Completion completion;
        completion.byte_len = entry.covered_byte_len();
        complete(turn, entry, completion);
    } else {
        retire(turn, entry);
    }
}

void WorkerQp::complete_send(Turn& turn, std::uint32_t offset, const ibv_wc& wc) noexcept {
    InFlightTable& entries = sends_.entries();
    bool lost = false;
    bool flushed = false;
    for (; offset > 0; --offset) {
        const InFlightEntry& entry = entries.pop();
        switch (entry.kind) {
            case InFlightEntry::Kind::posted:
            case InFlightEntry::Kind::covered: pass_over(turn, entry, wc, flushed); break;
            case InFlightEntry::Kind::unposted: end_send_by_runtime(turn, entry, entry.status); break;
            case InFlightEntry::Kind::marker: marker_in_flight_ = false; break;
            case InFlightEntry::Kind::flow:
            case InFlightEntry::Kind::announced:
            case InFlightEntry::Kind::reading:
                if (flow_->passed_over(turn, entry, Status::general_err)) {
                    sends_.fail();
                    lost = true;
                }
                break;
            case InFlightEntry::Kind::pooled:  // no request of a send queue
            case InFlightEntry::Kind::done: break;
        }
    }
    if (flushed) [[unlikely]] {
        sends_.fail();
    }
    const InFlightEntry& entry = entries.pop();
    if (entry.kind >= InFlightEntry::Kind::announced && entry.kind <= InFlightEntry::Kind::marker) [[unlikely]] {
        complete_own(turn, entry, wc);
    } else if (wc.status == IBV_WC_SUCCESS && !entry.signaled()) {
        retire(turn, entry);  // the signal was the worker's own
    } else {
        Completion completion;
        completion.status = static_cast<Status>(wc.status);
        if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
            if (wc.status == IBV_WC_REM_ACCESS_ERR && planted(Bug::misread_status)) {
                completion.status = Status::loc_access_err;
            }
            completion.vendor_err = wc.vendor_err;
            sends_.fail();
        } else if (brings_bytes(entry.opcode)) {
            completion.byte_len = wc.byte_len;
        }
        complete(turn, entry, completion);
    }
    if (!entries.empty() && !entries.front().with_provider()) [[unlikely]] {
        complete_unposted(turn);  // now that all before them have (I2)
    }
    if (cover_wanted_) [[unlikely]] {
        look_again(turn);
    }
    if (lost) [[unlikely]] {
        fail_flow(turn, FlowFault::completion_lost);  // the peer counts it, or waits for it
    }
}

/// Of what the runtime has posted for itself, or in place of a request.
[[gnu::noinline]] void WorkerQp::complete_own(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept {
    if (entry.kind == InFlightEntry::Kind::marker) {
        marker_in_flight_ = false;
        return;
    }
    if (wc.status != IBV_WC_SUCCESS) {
        sends_.fail();
    }
    const InFlightEntry own = entry;
    flow_->completed(turn, own, wc);
}

// ---- An error ----

[[gnu::cold]] void WorkerQp::fail(Turn& turn, Status cause, bool device_too) noexcept {
    if (cause == Status::device_removed) {
        leftover_status_ = unposted_status_ = cause;  // whatever put it into error before
        recvs_.end(cause);
    }
    if (in_error()) {
        // A flush that was seen first did not say why; a completion on the other CQ or an event may.
        const bool says_why = cause != Status::success && cause != Status::wr_flush_err && cause != Status::qp_closed;
        if (cause_ == Status::wr_flush_err && says_why) {
            cause_ = cause;
            publish_record();
        }
        return;
    }
    happens(QpEvent::fail);
    cause_ = cause;
    device_lags_ = !device_too;
    flush_held_ = !device_too && flow_->peer_may_act();
    recvs_.end(unposted_status_);
    flow_->fail();
    publish_record();
    look_again(turn);
}

[[gnu::cold]] void WorkerQp::fail_flow(Turn& turn, FlowFault fault) noexcept {
    if (in_error()) {
        return;
    }
    turn.counters.flow_faults.add(!is_own(fault));
    turn.answers.say(AnswerKind::flow_failed, handle_.index,
                     std::uint32_t{handle_.generation} << 8 | static_cast<std::uint32_t>(fault));
    fail(turn, status_of(fault), false);
}

[[gnu::cold]] void WorkerQp::lose_cq(Turn& turn) noexcept {
    leftover_status_ = Status::fatal_err;
    fail(turn, Status::fatal_err, false);
}

[[gnu::noinline]] std::optional<WorkerQp::Left> WorkerQp::turn(Turn& turn, bool may_leave) noexcept {
    if (std::exchange(look_again_, false) && in_error()) {
        end_life(turn);
    }
    return leave_.way != Leaving::none && may_leave && parked_ == 0 ? advance(turn) : std::nullopt;
}

/// All that follows when a queue pair is in error, in this order, whatever found the error. Each part does what there
/// is to do, and is asked again when something that it waits for has happened.
[[gnu::cold]] void WorkerQp::end_life(Turn& turn) noexcept {
    happens(QpEvent::end_life);
    // What waits for the peer ends behind what was posted, and what the peer was promised is others' again.
    if (!flush_held_) {
        flow_->flush(turn);
        end_waiting(turn, flow_->waiting());
    }
    flow_->end_life(turn);
    // Unsignaled requests that succeeded before the error leave nothing behind on some providers (H1).
    cover(turn);
    // Receives of a pool come back flushed, without a word to the application; the last one says that no message comes.
    if (!flow_->expects_message()) {
        recvs_.tell_end(turn, handle_, cause_);
    }
}

/// Sees to it that a completion will come that stands behind everything in the send queue now. What was unsignaled and
/// succeeded before the error leaves nothing behind on some providers, and what was not posted waits for its turn.
[[gnu::cold]] void WorkerQp::cover(Turn& turn) noexcept {
    cover_wanted_ = false;
    // One that was destroyed or reset has its leftovers completed soon.
    if (sends_.entries().empty() || sends_.provider() == nullptr || leave_.way == Leaving::renew) {
        return;
    }
    if (marker_in_flight_ || parked_ != 0 || device_lags_) {
        cover_wanted_ = true;
        return;
    }
    post_marker(turn);
}

// Any request that the type has would do, since in ERR all are flushed. Never posted to a QP that is well: a peer that
// forbids remote writes would end the connection over it.
void WorkerQp::post_marker(Turn& turn) noexcept {
    ibv_send_wr wr{};
    wr.send_flags = IBV_SEND_SIGNALED;
    if (datagram_) {
        wr.opcode = IBV_WR_SEND;
        wr.wr.ud.ah = options_.marker_ah;
        wr.wr.ud.remote_qpn = qp_num_;
    } else {
        wr.opcode = IBV_WR_RDMA_WRITE;
    }
    if (!sends_.post_now(turn, handle_, {.kind = InFlightEntry::Kind::marker}, wr)) {
        cover_wanted_ = true;
        // Tried again in the next step, since what it is to cover waits for nothing else. A provider that never takes
        // it must not keep the worker busy for ever: then that ends when the queue pair is closed.
        if (++markers_refused_ < kMarkerTries) {
            look_again(turn);
        }
        return;
    }
    markers_refused_ = 0;
    marker_in_flight_ = true;
    sends_.count_signal(true);
    turn.counters.markers.add();
}

// ---- Parked ----

void WorkerQp::park() noexcept {
    ++parked_;
    choose_way();
    send_cq_->park();
    recv_cq_->park();
}

void WorkerQp::unpark(Turn& turn, QpState state, Status cause, bool device_lags) noexcept {
    --parked_;
    send_cq_->unpark();
    recv_cq_->unpark();
    if (state == QpState::error) {
        fail(turn, cause, !device_lags);
        if (!device_lags) {
            device_lags_ = flush_held_ = false;
        }
    } else if (state == QpState::ready && life_ == QpLife::init) {
        happens(QpEvent::activate);
        publish_record();
    }
    choose_way();
    if (in_error()) {
        look_again(turn);  // its marker was put off
    } else {
        recvs_.refill(turn);  // in INIT it takes receives for the first time
    }
}

// ---- Out of service ----

void WorkerQp::leave(Turn& turn, const Leave& how) noexcept {
    leave_ = how;
    timed_out_ = false;
    quiet_since_ = turn.now();
    if (how.way != Leaving::retire) {
        --parked_;
        send_cq_->unpark();
        recv_cq_->unpark();
    }
    happens(QpEvent::leave);
    if (how.way == Leaving::forget || how.way == Leaving::lose) {
        sends_.set_provider(nullptr);
    }
    if (how.way == Leaving::forget && leftover_status_ == Status::qp_closed) {
        leftover_status_ = how.cause;
    }
    // Nothing more is posted, even where the provider did not take it to ERR.
    fail(turn, how.cause, !how.device_lags);
    if (!how.device_lags) {
        device_lags_ = flush_held_ = false;
    }
    look_again(turn);
}

std::optional<WorkerQp::Left> WorkerQp::advance(Turn& turn) noexcept {
    if (life_ == QpLife::failed) {
        happens(QpEvent::leave);  // it was not in error yet when the command came
    }
    if (life_ == QpLife::draining) {
        if (leave_.way == Leaving::retire && !drained(turn)) {
            return std::nullopt;
        }
        happens(QpEvent::drained);
        send_mark_ = send_cq_->mark();
        recv_mark_ = recv_cq_->mark();
        return std::nullopt;
    }
    if (!send_cq_->emptied_since(send_mark_) || !recv_cq_->emptied_since(recv_mark_)) {
        return std::nullopt;
    }
    happens(QpEvent::emptied);
    const Leave how = std::exchange(leave_, {});
    if (how.way == Leaving::retire) {
        return Left{how.command, timed_out_ ? AnswerKind::timed_out : AnswerKind::done};
    }
    complete_leftovers(turn);
    if (how.way == Leaving::forget) {
        drop(turn);
    } else if (how.way == Leaving::renew) {
        begin_life(turn, life_of(how.life), how.state);
    }
    return Left{how.command, AnswerKind::done, how.way == Leaving::forget};
}

/// Nothing is in flight, or what is will not be waited for any longer.
bool WorkerQp::drained(Turn& turn) noexcept {
    if (sends_.entries().empty() && recvs_.size() == 0) {
        return true;
    }
    if (only_late_receives(turn)) {
        leftover_status_ = Status::wr_flush_err;
        return true;
    }
    timed_out_ = turn.now() >= leave_.deadline;
    return timed_out_;
}

// Some providers never flush a receive that reached them in ERR (H1). When all else has come back, and nothing more
// comes, there is nothing to wait for: what is left is flushed by the runtime once the QP is destroyed.
bool WorkerQp::only_late_receives(const Turn& turn) noexcept {
    if (leave_.quiet == 0 || !sends_.entries().empty()) {
        return false;
    }
    if (recvs_.size() != recvs_left_) {
        recvs_left_ = recvs_.size();
        quiet_since_ = turn.now();
    }
    return turn.now() - quiet_since_ >= leave_.quiet;
}

// The QP exists no more, or was RESET, so no hardware touches these buffers.
void WorkerQp::complete_leftovers(Turn& turn) noexcept {
    InFlightTable& entries = sends_.entries();
    while (!entries.empty()) {
        const InFlightEntry entry = entries.pop();
        switch (entry.kind) {
            case InFlightEntry::Kind::posted:
            case InFlightEntry::Kind::covered:
                turn.counters.cut_short.add();
                if (entry.opcode == Opcode::bind_mw) {
                    turn.binds.lose(entry);
                }
                end_send_by_runtime(turn, entry, leftover_status_);
                break;
            case InFlightEntry::Kind::unposted: end_send_by_runtime(turn, entry, entry.status); break;
            case InFlightEntry::Kind::flow:
            case InFlightEntry::Kind::announced:
            case InFlightEntry::Kind::reading: (void)flow_->passed_over(turn, entry, leftover_status_); break;
            default: break;
        }
    }
    recvs_.complete_leftovers(turn, leftover_status_);
    recvs_.tell_end(turn, handle_, cause_);
}

// A life begins under a new generation, so a completion of the old one that a provider still has is not taken for new
// work (H3), and who holds the old handle is refused. Its number stays, so an SRQ finds it as before.
void WorkerQp::begin_life(Turn& turn, Life life, QpState state) noexcept {
    flow_->leave(turn);
    handle_.generation = life.generation;
    epoch_ = life.epoch;
    happens(QpEvent::renew);
    if (state == QpState::ready) {
        happens(QpEvent::activate);
    }
    cause_ = Status::success;
    leftover_status_ = Status::qp_closed;
    unposted_status_ = Status::wr_flush_err;
    marker_in_flight_ = cover_wanted_ = device_lags_ = flush_held_ = false;
    markers_refused_ = 0;
    sends_.begin_life();
    recvs_.begin_life(handle_);
    flow_->begin_life(turn);
    open_shares();
    publish_record();
    recvs_.refill(turn);
}

void WorkerQp::drop(Turn& turn) noexcept {
    turn.answers.withdraw(AnswerKind::flow_failed, handle_.index);
    happens(QpEvent::forget);
    publish_record();
    for (WorkerSession* session : sessions_) {
        session->close_share(handle_.index);
    }
    recvs_.dismiss(turn);
    flow_->leave(turn);
    flow_->dismiss(turn);
    turn.flows.remove(*flow_);
    if (options_.srq != nullptr) {
        options_.srq->remove(*this);
    }
    if (datagram_) {
        recv_cq_->remove_datagram_qp();
    }
}

}  // namespace pollcore
