// The life of a queue pair after an error, while it is parked, and while it is taken out of service. worker/README.md
// describes the order.
#include <utility>

#include "worker/worker_qp.hpp"
#include "worker/worker_srq.hpp"

namespace pollcore {

[[gnu::noinline]] std::optional<WorkerQp::Left> WorkerQp::turn(Turn& turn, bool may_leave) noexcept {
    if (std::exchange(look_again_, false) && in_error()) {
        end_life(turn);
    }
    return leave_.way != Leaving::none && may_leave && parked_ == 0 ? advance(turn) : std::nullopt;
}

/// Does everything that follows an error, in this order, for all kinds of errors. Each part does what is possible now.
/// When an event happens for which a part waits, this function is called again.
[[gnu::cold]] void WorkerQp::end_life(Turn& turn) noexcept {
    happens(QpEvent::end_life);
    // Requests that wait for the peer end after the posted requests. Receives that were granted to this peer become
    // free for other peers.
    if (!flush_held_) {
        flow_->flush(turn);
        end_waiting(turn, flow_->waiting());
    }
    flow_->end_life(turn);
    // With some providers, unsignaled requests that succeeded before the error have no completion, so a marker follows
    // (H1).
    cover(turn);
    // The receives of a pool come back flushed, and the application does not see these completions. Instead it gets one
    // final completion, which says that no more messages come.
    if (!flow_->expects_message()) {
        recvs_.tell_end(turn, handle_, cause_);
    }
}

/// Posts a marker behind everything that is in the send queue now. If that is not possible yet, notes that a marker is
/// wanted. The marker's completion ends unsignaled requests that succeeded before the error. The completion also ends
/// requests that were not posted.
[[gnu::cold]] void WorkerQp::cover(Turn& turn) noexcept {
    cover_wanted_ = false;
    // If the QP was destroyed or reset, complete_leftovers() will complete the remaining requests, so no marker is
    // needed.
    if (sends_.entries().empty() || sends_.provider() == nullptr || leave_.way == Leaving::renew) {
        return;
    }
    if (marker_in_flight_ || parked_ != 0 || device_lags_) {
        cover_wanted_ = true;
        return;
    }
    post_marker(turn);
}

// The marker may have any opcode that the QP's type allows, because in ERR every request is flushed. A marker is never
// posted to a live QP: if the peer forbids remote writes, the marker would end the connection (D26).
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
        // The worker tries again in the next step, because only the marker ends the requests before it. After
        // kMarkerTries it gives up, so that a provider that always refuses cannot keep the worker busy for ever. Then
        // these requests end when the queue pair is closed.
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
    } else if (advance_to(state)) {
        publish_record();
    }
    choose_way();
    if (in_error()) {
        look_again(turn);  // the marker was delayed while the QP was parked
    } else {
        recvs_.refill(turn);  // in INIT the QP accepts receives for the first time
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
    // From now on no request of a session is posted, even if the provider did not move the QP to ERR.
    fail(turn, how.cause, !how.device_lags);
    if (!how.device_lags) {
        device_lags_ = flush_held_ = false;
    }
    look_again(turn);
}

std::optional<WorkerQp::Left> WorkerQp::advance(Turn& turn) noexcept {
    if (life_ == QpLife::failed) {
        happens(QpEvent::leave);  // end_life() had not run when leave() was called, so leave() did not change the life
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

/// Returns true if nothing is in flight, or if the worker stops waiting.
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

// Some providers never flush a receive that reached them in ERR (H1). If only receives remain, and none has completed
// for a while, the worker stops waiting for them. The runtime completes these receives as flushed after the QP was
// destroyed (D27).
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

// The QP was destroyed or RESET, or its device was lost, so no hardware touches the buffers of these requests.
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

// A life begins with a new generation. So a late completion of the old life cannot be mistaken for one of the new life
// (H3). Requests with the old handle are refused. The QP number does not change, so the SRQ still finds the queue pair.
void WorkerQp::begin_life(Turn& turn, Life life, QpState state) noexcept {
    flow_->leave(turn);
    handle_.generation = life.generation;
    epoch_ = life.epoch;
    happens(QpEvent::renew);
    (void)advance_to(state);
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
