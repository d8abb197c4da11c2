#include "worker/worker_qp.hpp"

#include <utility>

#include "base/planted.hpp"
#include "session/completion_opcode.hpp"
#include "worker/worker_srq.hpp"

namespace pollcore {

WorkerQp::WorkerQp(const Options& options)
    : sends_(options.send),
      handle_(options.handle),
      datagram_(options.datagram),
      inline_max_(static_cast<std::uint16_t>(options.inline_max)),
      opcodes_(options.opcodes),
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
    (void)advance_to(options.state);
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

// Computes the members that decide whether a request may take the short way. Called by add(), and after each change of
// life or parking.
void WorkerQp::choose_way() noexcept {
    provider_at_rest_ = life_ == QpLife::ready && parked_ == 0;
    const bool ordinary = provider_at_rest_ && !flow_->frames() && !datagram_ && options_.ordinary;
    ordinary_ = ordinary ? static_cast<OpcodeMask>(opcodes_ & RequestHead::kOrdinary) : OpcodeMask{0};
}

// Goes on to `state`. Returns false if the queue pair is there already, or in error.
bool WorkerQp::advance_to(QpState state) noexcept {
    const QpLife before = life_;
    if (state == QpState::init || state == QpState::ready) {
        happens(QpEvent::open);
    }
    if (state == QpState::ready) {
        happens(QpEvent::activate);
    }
    return life_ != before;
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

WorkerQp::Figures WorkerQp::figures() const noexcept {
    Figures figures{.sends = sends_.requests(),
                    .send_bytes = sends_.bytes(),
                    .receives = receives_.value(),
                    .receive_bytes = received_bytes_.value()};
    for (std::size_t i = 0; i < errors_.size(); ++i) {
        figures.errors[i] = errors_[i].value();
    }
    return figures;
}

// ---- Posting sends ----

/// Called when the provider has refused the request `bad` of the chain and has taken the requests before `bad`. Ends
/// `bad`, and posts the requests behind it, because they may belong to other sessions.
[[gnu::cold]] void WorkerQp::end_refused(Turn& turn, ibv_send_wr* chain, ibv_send_wr* bad) noexcept {
    bool posted = false;  // true if a part of the chain was posted
    while (bad != nullptr) {
        ibv_send_wr* const next = bad->next;
        posted = posted || bad != chain;
        const InFlightEntry entry = sends_.take_refused(turn, *bad);
        // Covered requests before `bad` wait for the signal that `bad` had (D49).
        const bool others_wait = next == nullptr && posted && sends_.has_covered();
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

/// Fails the queue pair. The requests of `chain`, the remainder of a refused chain, are not posted.
[[gnu::cold]] void WorkerQp::break_off(Turn& turn, ibv_send_wr* chain, FlowFault fault) noexcept {
    for (const ibv_send_wr* wr = chain; wr != nullptr; wr = wr->next) {
        InFlightTable& entries = sends_.entries();
        InFlightEntry& entry =
            entries.at(entries.head_position() + entries.offset_of(WrId::unpack(wr->wr_id).position));
        entry.leave_unposted(Status::wr_flush_err);
    }
    fail_flow(turn, fault);
}

/// Handles the newest entry, which must not be chained, because it is a bind or the queue pair is in error.
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
    sends_.count(1, 0);
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

/// Puts the waiting requests behind all posted requests, as entries that were not posted.
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
    look_again(turn);  // if an entry is still in flight, end_life() then posts a marker
}

[[gnu::cold, gnu::noinline]] void WorkerQp::refuse(Turn& turn, const InFlightEntry& entry) noexcept {
    (void)flow_->refused(entry.opcode, false);
    end_send_by_runtime(turn, entry, Status::post_refused);
    complete_unposted(turn);
}

// ---- Completing sends ----

/// `completion` contains the result: status, flags, byte_len and vendor_err. The other fields come from the entry.
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

/// Ends an unsignaled request that has succeeded.
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

/// Ends a request that gets no work completion, because `wc` is already the work completion of a later request.
/// `flushed` is true if a request before this one counts as flushed. If this one does, pass_over() sets `flushed` to
/// true.
[[gnu::always_inline]] inline void WorkerQp::pass_over(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc,
                                                       bool& flushed) noexcept {
    const bool covered = entry.kind == InFlightEntry::Kind::covered;
    // A signaled request that is not covered has a work completion, in order. If it has none, the provider has
    // lost its completion, and the application must not wait for ever. If an unsignaled request behind a failure has
    // none, its completion was lost, too, because a flushed request always has one.
    if (!covered && (entry.signaled() || sends_.failed())) [[unlikely]] {
        sends_.fail();
        if (entry.opcode == Opcode::bind_mw && wc.status == IBV_WC_SUCCESS) {
            turn.binds.take_over_key(entry);
        }
        end_send_by_runtime(turn, entry, Status::general_err);
    } else if (flushed || (covered && wc.status == IBV_WC_WR_FLUSH_ERR)) [[unlikely]] {
        // A request before the flush has failed, and its completion may be lost. So covered requests count as flushed,
        // and so do the unsignaled requests behind them.
        flushed = true;
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
            case InFlightEntry::Kind::pooled:  // never in a send queue
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
        retire(turn, entry);  // the worker had added the signal
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
        // All requests before the entries that were not posted have completed, so these entries complete now (I2).
        complete_unposted(turn);
    }
    if (cover_wanted_) [[unlikely]] {
        look_again(turn);
    }
    if (lost) [[unlikely]] {
        fail_flow(turn, FlowFault::completion_lost);  // the peer counts or awaits the lost request
    }
}

/// Ends an entry that the runtime has posted for its own use or instead of a session's request.
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
        leftover_status_ = unposted_status_ = cause;  // the loss of the device overrides the status of an earlier error
        recvs_.end(cause);
    }
    if (in_error()) {
        // If a flush was the first sign of the error, the cause is unknown so far. A completion on the other CQ or an
        // event may name the cause.
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
    turn.failed_qps.add(handle_.index);
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

}  // namespace pollcore
