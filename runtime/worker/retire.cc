// Queue pairs that leave service: errors, markers, draining, and completing what no device will.
//
// The sequence (H1): the control thread puts the QP into ERR; retire_qp waits here until everything in flight
// was flushed, or for a deadline; the control thread destroys the QP; forget_qp completes what is left. Only
// then may a buffer be reused whose request no device completed (H2).
#include <algorithm>

#include "worker/worker.hpp"

namespace pollcore {

[[gnu::cold]] void Worker::enter_error(WorkerQp& qp, Status cause) noexcept {
    if (qp.state == QpState::error) {
        return;
    }
    qp.state = QpState::error;
    qp.cause = cause;
    publish_record(qp);
    // Unsignaled requests that succeeded before the error leave nothing behind on some providers (H1).
    cover(qp);
}

void Worker::publish_record(const WorkerQp& qp) noexcept {
    for (std::size_t i = 0; i < qp.shares.size(); ++i) {
        const ShareOptions& share = qp.shares[i];
        QpRecord& record = sessions_[share.session]->records[qp.handle.index];
        const QpLimitsWord limits{
            .send_depth = share.send_depth, .recv_depth = share.recv_depth, .opcodes = qp.opcodes};
        record.limits.store(limits.pack(), std::memory_order_relaxed);
        const QpStatusWord word{.generation = qp.handle.generation,
                                .state = qp.state,
                                .cause = qp.cause,
                                .sges_max = qp.sges_max,
                                .flags = share.recv_depth > 0 ? QpStatusWord::kReceives : std::uint8_t{0},
                                .inline_max = qp.inline_max};
        // Release, with the acquire in Session::admit: the limits above belong to this status.
        record.status.store(word.pack(), std::memory_order_release);
    }
}

void Worker::publish_record(const WorkerSrq& srq) noexcept {
    const SrqStatusWord word{
        .generation = srq.handle.generation, .sges_max = srq.sges_max, .depth = srq.receives.depth()};
    // Release, with the acquire in Session::admit_shared: the session's receives find the queue here.
    srq.session->srq_records[srq.handle.index].status.store(srq.closing ? 0 : word.pack(), std::memory_order_release);
}

// For a QP in error: sees to it that a completion will come that stands behind everything in the send queue now.
// What was unsignaled and succeeded before the error leaves nothing behind on some providers, and what was not
// posted waits for its turn.
[[gnu::cold]] void Worker::cover(WorkerQp& qp) noexcept {
    qp.cover_wanted = false;
    if (qp.sends.empty() || qp.qp == nullptr) {
        return;  // a QP that was destroyed has its leftovers completed by forget_qp
    }
    if (qp.marker_in_flight || qp.parked != 0) {
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
        wr.wr.ud.remote_qpn = qp.qp->qp_num;
    } else {
        wr.opcode = IBV_WR_RDMA_WRITE;
    }
    qp.sends.push() = {.kind = InFlightEntry::Kind::marker};
    ibv_send_wr* bad = nullptr;
    counters_.send_doorbells.add();
    if (ibv_post_send(qp.qp, &wr, &bad) != 0) {
        // Tried again with the next work of this QP; else what it would have covered ends when the QP is closed.
        qp.sends.pop_back();
        qp.cover_wanted = true;
        counters_.post_failures.add();
        return;
    }
    qp.marker_in_flight = true;
    qp.unsignaled_run = 0;
    counters_.markers.add();
}

// ---- Draining ----

std::uint32_t Worker::advance_retiring() noexcept {
    std::uint32_t ended = 0;
    for (std::size_t i = 0; i < retiring_.size();) {
        if (advance(*retiring_[i])) {
            retiring_[i] = retiring_.back();
            retiring_.pop_back();
            ++ended;
        } else {
            ++i;
        }
    }
    return ended;
}

bool Worker::advance(WorkerQp& qp) noexcept {
    if (qp.parked != 0) {
        return false;
    }
    if (!qp.waiting_empty) {
        const bool drained = qp.sends.empty() && qp.recvs.empty();
        if (qp.phase == WorkerQp::Phase::retiring && !drained) {
            if (only_late_receives(qp)) {
                qp.leftover_status = Status::wr_flush_err;
            } else if (now_ < qp.deadline) {
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
    if (qp.phase == WorkerQp::Phase::retiring) {
        qp.phase = WorkerQp::Phase::serving;
        answer(qp.command, qp.timed_out ? AnswerKind::timed_out : AnswerKind::done, qp.handle.index);
        return true;
    }
    complete_leftovers(qp);
    drop(qp);
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
        qp.quiet_since = now_;
    }
    return now_ - qp.quiet_since >= qp.quiet;
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

// The QP exists no more, so no hardware touches these buffers.
void Worker::complete_leftovers(WorkerQp& qp) noexcept {
    complete_leftovers(qp, qp.sends);
    complete_leftovers(qp, qp.recvs);
}

void Worker::complete_leftovers(WorkerQp& qp, InFlightTable& table) noexcept {
    while (!table.empty()) {
        const InFlightEntry& entry = table.pop();
        if (entry.kind == InFlightEntry::Kind::posted) {
            counters_.cut_short.add();
            deliver_by_runtime(qp, entry, qp.leftover_status);
        } else if (entry.kind == InFlightEntry::Kind::unposted) {
            deliver_by_runtime(qp, entry, entry.status);
        }
    }
}

void Worker::drop(WorkerQp& qp) noexcept {
    qp.state = QpState::closed;
    publish_record(qp);
    for (const ShareOptions& share : qp.shares) {
        sessions_[share.session]->shares[qp.handle.index] = Share{};
    }
    if (qp.srq != nullptr) {
        qp.srq->qps.remove(qp.qp_num);
    }
    qps_[qp.handle.index] = nullptr;
    cqs_[qp.recv_cq]->datagram_qps -= qp.datagram;
    answer(qp.command, AnswerKind::done, qp.handle.index);  // from here on it is the control thread's
}

// No queue pair uses it, and it exists no more.
void Worker::drop(WorkerSrq& srq) noexcept {
    for (std::uint32_t slot = 0; slot < srq.receives.depth(); ++slot) {
        if (srq.receives.in_flight(slot)) {
            deliver_by_runtime(srq, slot, Status::srq_closed);
        }
    }
    srqs_[srq.handle.index] = nullptr;
}

}  // namespace pollcore
