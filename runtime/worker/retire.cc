// Queue pairs that leave service: errors, markers, draining, and completing what no device will.
//
// The sequence (H1): the control thread puts the QP into ERR; retire_qp waits here until everything in flight
// was flushed, or for a deadline; the control thread destroys the QP; forget_qp completes what is left. Only
// then may a buffer be reused whose request no device completed (H2).
// A reset goes the same way: the QP is RESET instead of destroyed, and renew_qp lets it go on. A QP whose device was
// lost has no flush to wait for; lose_qp completes what it had.
#include <algorithm>

#include "base/life.hpp"
#include "worker/worker.hpp"

namespace pollcore {

/// The queue pair is in error from here on. May be called in the middle of anything: what follows is end_life()'s, at the end of the step.
/// `device_too`: the device has the queue pair in ERR. Else the control thread will see to that, and device_follows() is called.
[[gnu::cold]] void Worker::fail(WorkerQp& qp, Status cause, bool device_too) noexcept {
    if (cause == Status::device_removed) {
        qp.leftover_status = qp.unposted_status = cause;  // whatever put it into error before
    }
    if (qp.state == QpState::error) {
        // A flush that was seen first did not say why; a completion on the other CQ or an event may.
        const bool says_why = cause != Status::success && cause != Status::wr_flush_err && cause != Status::qp_closed;
        if (qp.cause == Status::wr_flush_err && says_why) {
            qp.cause = cause;
            publish_record(qp);
        }
        return;
    }
    qp.state = QpState::error;
    choose_way(qp);
    qp.cause = cause;
    qp.device_lags = !device_too;
    qp.flush_held = !device_too && qp.flow != nullptr && qp.flow->announced.open();
    qp.failing = true;
    due(qp);
}

/// end_life() is to look at a queue pair in error (again).
[[gnu::cold]] void Worker::due(WorkerQp& qp) noexcept {
    qp.due = true;
    if (!std::exchange(qp.in_lives, true)) {
        lives_.push_back(&qp);
    }
}

/// The part of a step in which queue pairs end: nothing is half taken or half completed here, and nothing is chained.
[[gnu::noinline]] std::uint32_t Worker::turn_lives() noexcept {
    std::uint32_t ended = 0;
    for (std::size_t i = 0; i < lives_.size();) {
        WorkerQp& qp = *lives_[i];
        if (std::exchange(qp.due, false)) {
            end_life(qp);
        }
        if (qp.phase == WorkerQp::Phase::serving) {
            qp.in_lives = false;
        } else if (turn_.answers.room() && advance(qp)) {
            ++ended;
        } else {
            ++i;
            continue;
        }
        lives_[i] = lives_.back();
        lives_.pop_back();
    }
    return ended;
}

/// All that follows when a queue pair is in error, in this order. Each part does what there is to do, and is asked again
/// when something that it waits for has happened.
[[gnu::cold]] void Worker::end_life(WorkerQp& qp) noexcept {
    if (std::exchange(qp.failing, false)) {
        publish_record(qp);
    }
    if (!qp.flush_held) {
        flush_waiting(qp);
    }
    if (qp.flow != nullptr && qp.srq != nullptr) {
        drop_grants(qp);
        grant(*qp.srq);
    }
    // Unsignaled requests that succeeded before the error leave nothing behind on some providers (H1).
    cover(qp);
    tell_end(qp);
    if (in_ring(qp)) {
        list(qp);
    }
}

/// The device has the queue pair in ERR, or has it no more.
void Worker::device_follows(WorkerQp& qp) noexcept {
    qp.device_lags = false;
    if (std::exchange(qp.flush_held, false)) {
        due(qp);
    }
}

void Worker::publish_record(const WorkerQp& qp) noexcept {
    for (std::size_t i = 0; i < qp.shares.size(); ++i) {
        const ShareOptions& share = qp.shares[i];
        WorkerSession& session = *sessions_[share.session];
        const QpLimitsWord limits{.send_depth = share.send_depth, .recv_depth = share.recv_depth, .opcodes = qp.opcodes};
        const MessageLimitsWord longest = qp.flow == nullptr ? MessageLimitsWord{}
                                                             : MessageLimitsWord{qp.flow->message_max, qp.flow->rendezvous_max};
        session.publish_limits(qp.handle.index, limits, longest);
        const bool sums = qp.flow != nullptr && qp.flow->rings && (!qp.flow->agreed || qp.flow->target.sums);
        const auto flags = static_cast<std::uint8_t>((share.recv_depth > 0 ? QpStatusWord::kReceives : 0) |
                                                     (qp.flow != nullptr ? QpStatusWord::kCredits : 0) |
                                                     (sums ? QpStatusWord::kSums : 0));
        const QpStatusWord word{.generation = qp.handle.generation,
                                .epoch = qp.epoch,
                                .state = qp.state,
                                .cause = qp.cause,
                                .sges_max = qp.sges_max,
                                .flags = flags,
                                .inline_max = qp.inline_max};
        session.publish_status(qp.handle.index, word);
    }
}

void Worker::publish_record(const WorkerSrq& srq) noexcept {
    const SrqStatusWord word{
        .generation = srq.handle.generation,
        .sges_max = srq.sges_max,
        .depth = srq.pool.pool != nullptr ? 0 : srq.receives.depth()};
    srq.session->publish_srq(srq.handle.index, srq.closing ? 0 : word.pack());
}

// For a QP in error: sees to it that a completion will come that stands behind everything in the send queue now.
// What was unsignaled and succeeded before the error leaves nothing behind on some providers, and what was not
// posted waits for its turn.
[[gnu::cold]] void Worker::cover(WorkerQp& qp) noexcept {
    qp.cover_wanted = false;
    // One that was destroyed or reset has its leftovers completed soon.
    if (qp.sends.empty() || qp.qp == nullptr || qp.phase == WorkerQp::Phase::renewing) {
        return;
    }
    if (qp.marker_in_flight || qp.parked != 0 || qp.device_lags) {
        qp.cover_wanted = true;
        return;
    }
    post_marker(qp);
}

// Any request that the type has would do, since in ERR all are flushed. Never posted to a QP that is well: a peer that forbids
// remote writes would end the connection over it.
void Worker::post_marker(WorkerQp& qp) noexcept {
    ibv_send_wr wr{};
    wr.wr_id = WrId{qp.handle, false, qp.sends.next_position()}.pack();
    wr.send_flags = IBV_SEND_SIGNALED;
    if (qp.datagram) {
        wr.opcode = IBV_WR_SEND;
        wr.wr.ud.ah = qp.marker_ah;
        wr.wr.ud.remote_qpn = qp.qp_num;
    } else {
        wr.opcode = IBV_WR_RDMA_WRITE;
    }
    qp.sends.push() = {.kind = InFlightEntry::Kind::marker};
    ibv_send_wr* bad = nullptr;
    turn_.counters.send_doorbells.add();
    if (ibv_post_send(qp.qp, &wr, &bad) != 0) {
        // Tried again with the next work of this QP; else what it would have covered ends when the QP is closed.
        qp.sends.pop_back();
        qp.cover_wanted = true;
        turn_.counters.post_failures.add();
        return;
    }
    qp.marker_in_flight = true;
    qp.unsignaled_run = 0;
    turn_.counters.markers.add();
}

// ---- Draining ----

/// True: it is over, and the queue pair may be the control thread's.
bool Worker::advance(WorkerQp& qp) noexcept {
    if (qp.parked != 0) {
        return false;
    }
    if (!qp.waiting_empty) {
        const bool drained = qp.sends.empty() && qp.recvs.empty();
        if (qp.phase == WorkerQp::Phase::retiring && !drained) {
            if (only_late_receives(qp)) {
                qp.leftover_status = Status::wr_flush_err;
            } else if (turn_.now() < qp.deadline) {
                return false;
            } else {
                qp.timed_out = true;
            }
        }
        await_empty_cqs(qp);
        return false;
    }
    if (!cqs_emptied(qp)) {
        return false;
    }
    qp.waiting_empty = false;
    qp.in_lives = false;
    const WorkerQp::Phase phase = std::exchange(qp.phase, WorkerQp::Phase::serving);
    if (phase == WorkerQp::Phase::retiring) {
        turn_.answers.answer(qp.command, qp.timed_out ? AnswerKind::timed_out : AnswerKind::done, qp.handle.index);
        return true;
    }
    complete_leftovers(qp);
    if (phase == WorkerQp::Phase::forgetting) {
        drop(qp);
    } else if (phase == WorkerQp::Phase::renewing) {
        renew(qp);
    }
    turn_.answers.answer(qp.command, AnswerKind::done, qp.handle.index);  // one that was dropped is the control thread's from here on
    return true;
}

// Some providers never flush a receive that reached them in ERR (H1). When all else has come back, and nothing more
// comes, there is nothing to wait for: what is left is flushed by the runtime once the QP is destroyed.
bool Worker::only_late_receives(WorkerQp& qp) const noexcept {
    if (qp.quiet == 0 || !qp.sends.empty()) {
        return false;
    }
    if (qp.recvs.size() != qp.recvs_left) {
        qp.recvs_left = qp.recvs.size();
        qp.quiet_since = turn_.now();
    }
    return turn_.now() - qp.quiet_since >= qp.quiet;
}

void Worker::await_empty_cqs(WorkerQp& qp) noexcept {
    qp.waiting_empty = true;
    qp.send_cq_mark = {cqs_[qp.send_cq]->emptied, cqs_[qp.send_cq]->taken};
    qp.recv_cq_mark = {cqs_[qp.recv_cq]->emptied, cqs_[qp.recv_cq]->taken};
}

bool Worker::cqs_emptied(const WorkerQp& qp) const noexcept {
    // Everything that stood in it then has been taken: it was seen empty, or, while others keep it busy, as much
    // came out as it can hold.
    const auto emptied = [](const WorkerCq& cq, const WorkerQp::CqMark& mark) {
        return cq.failed || cq.emptied > mark.emptied || cq.taken - mark.taken >= cq.depth;
    };
    return emptied(*cqs_[qp.send_cq], qp.send_cq_mark) && emptied(*cqs_[qp.recv_cq], qp.recv_cq_mark);
}

// The QP exists no more, or was RESET, so no hardware touches these buffers.
void Worker::complete_leftovers(WorkerQp& qp) noexcept {
    complete_leftovers(qp, qp.sends);
    complete_leftovers(qp, qp.recvs);
    tell_end(qp);
}

void Worker::complete_leftovers(WorkerQp& qp, InFlightTable& table) noexcept {
    while (!table.empty()) {
        const InFlightEntry& entry = table.pop();
        if (entry.kind == InFlightEntry::Kind::announced || entry.kind == InFlightEntry::Kind::reading) {
            lose_rendezvous(qp, entry, qp.leftover_status);
        } else if (entry.kind == InFlightEntry::Kind::posted) {
            turn_.counters.cut_short.add();
            if (entry.opcode == Opcode::bind_mw) {
                // Relaxed: the control thread looks when it has the answer to forget_qp.
                windows_[entry.bind.window]->lost.store(true, std::memory_order_relaxed);
            }
            deliver_by_runtime(qp, entry, qp.leftover_status);
        } else if (entry.kind == InFlightEntry::Kind::pooled) {
            return_unused(qp.pool, entry);
        } else if (entry.kind == InFlightEntry::Kind::unposted) {
            deliver_by_runtime(qp, entry, entry.status);
        }
    }
}

void Worker::drop(WorkerQp& qp) noexcept {
    turn_.answers.withdraw(AnswerKind::flow_failed, qp.handle.index);
    qp.state = QpState::closed;
    publish_record(qp);
    for (const ShareOptions& share : qp.shares) {
        sessions_[share.session]->close_share(qp.handle.index);
    }
    if (qp.srq != nullptr) {
        qp.srq->qps.remove(qp.qp_num);
    }
    dismiss(qp.pool);
    dismiss(qp.rendezvous);
    dismiss(qp);
    qps_[qp.handle.index] = nullptr;
    count_qps(-1);
    cqs_[qp.recv_cq]->datagram_qps -= qp.datagram;
}

// A life begins under a new generation, so a completion of the old one that a provider still has is not taken for
// new work (H3), and who holds the old handle is refused. Its number stays, so an SRQ finds it as before.
void Worker::renew(WorkerQp& qp) noexcept {
    leave_ring(qp);
    const Life life = life_of(qp.next_life);
    qp.handle.generation = life.generation;
    qp.epoch = life.epoch;
    qp.state = qp.next_state;
    choose_way(qp);
    qp.cause = Status::success;
    qp.leftover_status = Status::qp_closed;
    qp.unposted_status = Status::wr_flush_err;
    qp.unsignaled_run = 0;
    qp.marker_in_flight = false;
    qp.cover_wanted = false;
    qp.device_lags = false;
    qp.due = qp.failing = false;
    qp.send_failed = false;
    if (qp.flow != nullptr) {
        drop_grants(qp);
        qp.flow->renew();
    }
    open_shares(qp);
    publish_record(qp);
    if (qp.flow != nullptr && qp.srq != nullptr) {
        grant(*qp.srq, qp);
    }
    if (qp.pool.pool != nullptr) {
        qp.pool.told = false;
        list(qp.pool);
    }
}

// It exists no more, nor do queue pairs that use it.
void Worker::complete_leftovers(WorkerSrq& srq) noexcept {
    for (std::uint32_t slot = 0; slot < srq.receives.depth(); ++slot) {
        if (!srq.receives.in_flight(slot)) {
            continue;
        }
        if (const InFlightEntry& entry = srq.receives.at(slot); entry.kind == InFlightEntry::Kind::pooled) {
            return_unused(srq.pool, entry);
            srq.receives.give_back(slot);
        } else {
            deliver_by_runtime(srq, slot, srq.leftover_status);
        }
    }
}

}  // namespace pollcore
