// Ringing the doorbells: the chains of a burst go to the provider, and what it refuses of them ends.
#include <utility>

#include "worker/worker.hpp"

namespace pollcore {

void Worker::ring_doorbells() noexcept {
    if (chained_srqs_ != nullptr) [[unlikely]] {
        post_shared_recvs();
    }
    for (WorkerQp* qp = chained_; qp != nullptr; qp = qp->next_chained) {
        qp->chained = false;
        // Receives first: an answer to what is sent next may arrive at once.
        if (qp->recv_head != nullptr) {
            post_recvs(*qp);
        }
        if (qp->send_head != nullptr) {
            post_sends(*qp);
        }
    }
    chained_ = nullptr;
    chained_end_ = &chained_;
    wrs_used_ = recv_wrs_used_ = sges_used_ = inline_used_ = 0;
}

[[gnu::noinline]] void Worker::post_shared_recvs() noexcept {
    for (WorkerSrq* srq = std::exchange(chained_srqs_, nullptr); srq != nullptr; srq = srq->next_chained) {
        srq->chained = false;
        post_shared_recvs(*srq);
    }
}

void Worker::post_shared_recvs(WorkerSrq& srq) noexcept {
    ibv_recv_wr* next = std::exchange(srq.head, nullptr);
    srq.tail = nullptr;
    while (next != nullptr) {
        ibv_recv_wr* bad = nullptr;
        turn_.counters.receive_doorbells.add();
        if (ibv_post_srq_recv(srq.srq, next, &bad) == 0) [[likely]] {
            break;
        }
        bad = bad != nullptr ? bad : next;
        turn_.counters.post_failures.add();
        const std::uint32_t slot = SrqWrId::unpack(bad->wr_id).slot;
        if (srq.receives.at(slot).kind == InFlightEntry::Kind::pooled) {
            return_refused(srq.pool, srq.receives.at(slot));
            srq.receives.give_back(slot);
        } else {
            deliver_by_runtime(srq, slot, Status::post_refused);
        }
        next = bad->next;
    }
    if (srq.granted_max != 0) {
        grant(srq);
    }
}

[[nodiscard]] static InFlightEntry& refused(InFlightTable& table, std::uint64_t wr_id) noexcept {
    return table.at(table.head_position() + table.offset_of(WrId::unpack(wr_id).position));
}

// A work request that the provider refused was never in the queue, so its completion keeps to no order of it and
// comes at once, as an error of the call would. Its place is given back at once too, or refused ones between others would
// take the room that those were promised.
[[gnu::cold]] void Worker::complete_refused(WorkerQp& qp, InFlightTable& table, std::uint64_t wr_id) noexcept {
    const InFlightEntry entry = refused(table, wr_id);
    table.erase(table.head_position() + table.offset_of(WrId::unpack(wr_id).position));
    turn_.counters.post_failures.add();
    if (qp.flow != nullptr) {
        is_recv(entry.opcode) ? count_posted(qp, std::uint32_t(-1)) : give_credit_back(qp, entry.opcode);
    }
    if (entry.kind == InFlightEntry::Kind::pooled) {
        return_refused(qp.pool, entry);
    } else {
        deliver_by_runtime(qp, entry, Status::post_refused);
    }
    drain_unposted(qp, table);
}

// What stands behind a refused one in its chain has moved up in the table.
template <class Wr>
[[gnu::cold]] static void move_up(Wr* chain) noexcept {
    for (Wr* wr = chain; wr != nullptr; wr = wr->next) {
        WrId id = WrId::unpack(wr->wr_id);
        --id.position;  // modulo what travels
        wr->wr_id = id.pack();
    }
}

[[gnu::always_inline]] inline void Worker::post_sends(WorkerQp& qp) noexcept {
    *std::exchange(qp.send_end, &qp.send_head) = nullptr;
    ibv_send_wr* next = std::exchange(qp.send_head, nullptr);
    while (next != nullptr) {
        ibv_send_wr* bad = nullptr;
        turn_.counters.send_doorbells.add();
        if (ibv_post_send(qp.qp, next, &bad) == 0) [[likely]] {
            break;
        }
        // What stands before the bad one was posted. What follows it gets its own chance, since it may belong to
        // another session. The signal that the bad one may have carried is made up for by the next.
        bad = bad != nullptr ? bad : next;
        qp.unsignaled_run = qp.signal_interval;
        const bool breaks_off =
            qp.flow != nullptr && qp.flow->rings && (bad->next != nullptr || is_send(refused(qp.sends, bad->wr_id).opcode));
        complete_refused(qp, qp.sends, bad->wr_id);
        next = bad->next;
        move_up(next);
        if (breaks_off) {
            break_off(qp, next);
            break;
        }
    }
}

[[gnu::always_inline]] inline void Worker::post_recvs(WorkerQp& qp) noexcept {
    ibv_recv_wr* next = std::exchange(qp.recv_head, nullptr);
    qp.recv_tail = nullptr;
    while (next != nullptr) {
        ibv_recv_wr* bad = nullptr;
        turn_.counters.receive_doorbells.add();
        if (ibv_post_recv(qp.qp, next, &bad) == 0) [[likely]] {
            break;
        }
        bad = bad != nullptr ? bad : next;
        complete_refused(qp, qp.recvs, bad->wr_id);
        next = bad->next;
        move_up(next);
    }
}

}  // namespace pollcore
