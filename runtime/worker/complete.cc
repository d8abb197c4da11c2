// From a CQ to the sessions: each work completion finds its in-flight entry by wr_id.
#include <arpa/inet.h>

#include <cstring>

#include "base/planted.hpp"
#include "session/completion_opcode.hpp"
#include "worker/worker.hpp"

namespace pollcore {

void Worker::route(WorkerCq& cq, std::uint32_t n) noexcept {
    // Fetching the line from an application that watches it takes as long as a hop, so it begins before anything is known.
    if (cq.served != nullptr) [[likely]] {
        cq.served->prefetch_completions();
    }
    if (many_qps_) {
        prefetch_entries(n);
    }
    if (n > 1 && planted(Bug::swapped)) {
        std::swap(wcs_[0], wcs_[1]);
    }
    for (std::uint32_t i = 0; (i = route_ordinary(cq, i, n)) < n; ++i) {
        route(cq, wcs_[i]);
    }
}

// The sessions that want a time have wide completions, which are never ordinary; others of these queue pairs go the general way, too.
[[gnu::noinline]] void Worker::route_with_times(WorkerCq& cq, std::uint32_t n) noexcept {
    for (std::uint32_t i = 0; i < n; ++i) {
        turn_.set_device_time(device_times_[i]);
        route(cq, wcs_[i]);
    }
    turn_.set_device_time(0);
}

// As prefetch_qps(), for the first `n` of wcs_. Those of shared receive queues name none, and nothing is fetched in vain but a line.
[[gnu::noinline]] void Worker::prefetch_entries(std::uint32_t n) noexcept {
    std::array<const WorkerQp*, kBurstMax> qps;
    for (std::uint32_t i = 0; i < n; ++i) {
        const WorkerQp* const qp = qps_[WrId::unpack(wcs_[i].wr_id).qp.index & qps_mask_];
        qps[i] = qp;
        __builtin_prefetch(qp, 1);
        __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(qp) + offsetof(WorkerQp, sends)), 1);
    }
    for (std::uint32_t i = 0; i < n; ++i) {
        if (qps[i] != nullptr) {
            const WrId id = WrId::unpack(wcs_[i].wr_id);
            (id.recv ? qps[i]->recvs : qps[i]->sends).prefetch(id.position);
        }
    }
}

[[gnu::always_inline]] inline void Worker::route(WorkerCq& cq, const ibv_wc& wc) noexcept {
    if (SrqWrId::names(wc.wr_id)) [[unlikely]] {
        return complete_shared_recv(wc);
    }
    const WrId id = WrId::unpack(wc.wr_id);
    WorkerQp* qp = find_qp(id.qp);
    if (qp == nullptr) [[unlikely]] {
        turn_.counters.stale_completions.add();  // of a generation that is gone and was completed then (H3)
        return;
    }
    InFlightTable& table = id.recv ? qp->recvs : qp->sends;
    const std::uint32_t offset = table.offset_of(id.position);
    if (offset >= table.size()) [[unlikely]] {
        turn_.counters.stale_completions.add();
        return;
    }
    if (const InFlightEntry& entry = table.at(id.position); entry.kind <= InFlightEntry::Kind::pooled && entry.signaled()) [[likely]] {
        cq.served = entry.session;
        cq.served->prefetch_completions();
    }
    if (id.recv) {
        complete_recv(*qp, offset, wc);
    } else {
        complete_send(*qp, offset, wc);
    }
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        fail(*qp, static_cast<Status>(wc.status));
    }
}

// A completion stands for its work request and for all unsignaled ones before it.
[[gnu::always_inline]] inline void Worker::complete_send(WorkerQp& qp, std::uint32_t offset, const ibv_wc& wc) noexcept {
    bool lost = false;
    for (; offset > 0; --offset) {
        const InFlightEntry& entry = qp.sends.pop();
        switch (entry.kind) {
            case InFlightEntry::Kind::posted:
                // Signaled ones complete themselves and in order; one that is passed over has been lost by
                // the provider, and the application must not wait for it for ever. So has any that stands behind a
                // failure, since what is flushed completes, signaled or not.
                if (entry.signaled() || qp.send_failed) [[unlikely]] {
                    qp.send_failed = true;
                    if (entry.opcode == Opcode::bind_mw && wc.status == IBV_WC_SUCCESS) {
                        take_over_key(entry);
                    }
                    deliver_by_runtime(qp, entry, Status::general_err);
                } else {
                    retire_entry(qp, entry);
                }
                break;
            case InFlightEntry::Kind::unposted:
                deliver_by_runtime(qp, entry, entry.status);
                break;
            case InFlightEntry::Kind::marker:
                qp.marker_in_flight = false;
                break;
            case InFlightEntry::Kind::flow:
                --qp.flow->writes;
                break;
            case InFlightEntry::Kind::announced:  // signaled both, and lost
            case InFlightEntry::Kind::reading:
                qp.send_failed = lost = true;
                lose_rendezvous(qp, entry, Status::general_err);
                break;
            case InFlightEntry::Kind::pooled:  // no request of a send queue
            case InFlightEntry::Kind::done:
                break;
        }
    }
    const InFlightEntry& entry = qp.sends.pop();
    if (entry.kind >= InFlightEntry::Kind::announced && entry.kind <= InFlightEntry::Kind::marker) [[unlikely]] {
        complete_own(qp, entry, wc);
    } else if (wc.status == IBV_WC_SUCCESS && !entry.signaled()) {
        retire_entry(qp, entry);  // the signal was the worker's own
    } else {
        Completion completion;
        completion.status = static_cast<Status>(wc.status);
        if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
            if (wc.status == IBV_WC_REM_ACCESS_ERR && planted(Bug::misread_status)) {
                completion.status = Status::loc_access_err;
            }
            completion.vendor_err = wc.vendor_err;
            qp.send_failed = true;
        } else if (entry.opcode == Opcode::rdma_read || is_atomic(entry.opcode)) {
            completion.byte_len = wc.byte_len;
        }
        deliver(qp, entry, completion, false);
    }
    drain_unposted(qp, qp.sends);
    if (qp.cover_wanted) [[unlikely]] {
        due(qp);
    }
    if (lost) [[unlikely]] {
        fail_flow(qp, FlowFault::completion_lost);  // the peer counts it, or waits for it
    }
}

/// Of what the runtime has posted for itself, or in place of a request.
[[gnu::noinline]] void Worker::complete_own(WorkerQp& qp, const InFlightEntry& entry, const ibv_wc& wc) noexcept {
    if (entry.kind == InFlightEntry::Kind::marker) {
        qp.marker_in_flight = false;
        return;
    }
    qp.send_failed = qp.send_failed || wc.status != IBV_WC_SUCCESS;
    if (entry.kind == InFlightEntry::Kind::flow) {
        --qp.flow->writes;
    } else if (entry.kind == InFlightEntry::Kind::announced) {
        complete_announced(qp, entry, wc);
    } else {
        complete_reading(qp, entry, wc);
    }
}

/// What a receive's work completion says, in the fields that are valid. Of a datagram, which says where it came from,
/// `wc` is returned.
[[gnu::always_inline]] inline const ibv_wc* Worker::take_recv_fields(const WorkerQp* qp, const ibv_wc& wc,
                                                                     Completion& completion) noexcept {
    completion.status = static_cast<Status>(wc.status);
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        completion.vendor_err = wc.vendor_err;
        return nullptr;
    }
    completion.byte_len = wc.byte_len;
    if (wc.wc_flags & IBV_WC_WITH_IMM) {
        completion.flags = kWithImm;
        completion.imm_data = ntohl(wc.imm_data);
    } else if (wc.wc_flags & IBV_WC_WITH_INV) [[unlikely]] {
        completion.flags = kWithInv;
        completion.invalidated_rkey = wc.invalidated_rkey;
    }
    if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        completion.opcode = CompletionOpcode::recv_rdma_with_imm;
    }
    if (qp == nullptr || !qp->datagram) [[likely]] {
        return nullptr;
    }
    completion.flags |= (wc.wc_flags & IBV_WC_GRH) != 0 ? kDatagram | kWithGrh : kDatagram;
    return &wc;
}

[[gnu::always_inline]] inline void Worker::complete_recv(WorkerQp& qp, std::uint32_t offset, const ibv_wc& wc) noexcept {
    InFlightEntry& entry = qp.recvs.at(qp.recvs.head_position() + offset);
    if (entry.kind != InFlightEntry::Kind::posted && entry.kind != InFlightEntry::Kind::pooled) [[unlikely]] {
        turn_.counters.stale_completions.add();
        return;
    }
    Completion completion;
    const ibv_wc* datagram = take_recv_fields(&qp, wc, completion);
    if (entry.kind == InFlightEntry::Kind::posted) [[likely]] {
        deliver(qp, entry, completion, true, datagram);
    } else {
        completion.qp = qp.handle;
        complete_pooled(&qp, qp.pool, entry.tag, completion, datagram);
    }
    if (offset == 0) [[likely]] {
        (void)qp.recvs.pop();
    } else {
        entry.kind = InFlightEntry::Kind::done;
    }
    drain_unposted(qp, qp.recvs);
    if (qp.state == QpState::error) [[unlikely]] {
        due(qp);
    }
}

[[gnu::noinline]] void Worker::complete_shared_recv(const ibv_wc& wc) noexcept {
    const SrqWrId id = SrqWrId::unpack(wc.wr_id);
    WorkerSrq* srq = find_srq(id.srq);
    if (srq == nullptr || !srq->receives.in_flight(id.slot)) [[unlikely]] {
        turn_.counters.stale_completions.add();
        return;
    }
    if (wc.status != IBV_WC_SUCCESS && planted(Bug::kept_shared)) {
        return;
    }
    WorkerQp* qp = srq->qps.find(wc.qp_num);
    Completion completion;
    const ibv_wc* datagram = take_recv_fields(qp, wc, completion);
    // A number that names none is a provider's mistake; the receive is over all the same.
    if (qp != nullptr) [[likely]] {
        completion.qp = qp->handle;
    }
    if (srq->receives.at(id.slot).kind == InFlightEntry::Kind::pooled) {
        completion.srq = srq->handle;
        const std::uint64_t tag = srq->receives.at(id.slot).tag;
        srq->receives.give_back(id.slot);
        complete_pooled(qp, srq->pool, tag, completion, datagram);
    } else {
        deliver(*srq, id.slot, completion, datagram);
    }
    if (srq->granted_max != 0 && qp != nullptr) {
        use_grant(*srq, *qp);
    }
    if (wc.status != IBV_WC_SUCCESS && qp != nullptr) [[unlikely]] {
        fail(*qp, static_cast<Status>(wc.status));
    }
}

void Worker::fail_cq(WorkerCq& cq) noexcept {
    cq.failed = true;
    turn_.counters.failed_polls.add();
    for (std::uint32_t i = 0; i <= qps_mask_; ++i) {
        WorkerQp* qp = qps_[i];
        if (qp != nullptr && (qp->send_cq == cq.index || qp->recv_cq == cq.index)) {
            qp->leftover_status = Status::fatal_err;
            fail(*qp, Status::fatal_err, false);
        }
    }
    turn_.answers.say(AnswerKind::cq_failed, cq.index, cq.id);
}

// ---- From an in-flight entry to a completion in its session's ring, or to a place given back ----

// `completion` holds what the device said; the rest comes from the entry. `datagram` is what was received, if it was one.
[[gnu::always_inline]] inline void Worker::deliver(WorkerQp& qp, const InFlightEntry& entry, Completion& completion,
                                                   bool from_recv_queue, const ibv_wc* datagram) noexcept {
    completion.qp = qp.handle;
    if (from_recv_queue) {
        completion.flags |= kFromRecvQueue;
        if (completion.opcode != CompletionOpcode::recv_rdma_with_imm) {
            completion.opcode = CompletionOpcode::recv;
        }
    } else {
        completion.opcode = kSendCompletions[static_cast<std::uint8_t>(entry.opcode)];
        if (entry.opcode == Opcode::bind_mw) [[unlikely]] {
            end_bind(entry, completion.status);
            if (completion.ok()) {
                completion.window_rkey = entry.new_rkey;
            }
        }
    }
    entry.session->complete(turn_, qp.handle.index, entry, completion, from_recv_queue, datagram);
}

[[gnu::cold]] void Worker::deliver_by_runtime(WorkerQp& qp, const InFlightEntry& entry, Status status) noexcept {
    Completion completion;
    completion.status = status;
    completion.flags = kByRuntime;
    deliver(qp, entry, completion, is_recv(entry.opcode));
}

/// As above, for a receive of a shared receive queue; `completion` holds what the device said, and the queue pair.
void Worker::deliver(WorkerSrq& srq, std::uint32_t slot, Completion& completion, const ibv_wc* datagram) noexcept {
    completion.tag = srq.receives.at(slot).tag;
    completion.srq = srq.handle;
    completion.flags |= kFromRecvQueue;
    if (completion.opcode != CompletionOpcode::recv_rdma_with_imm) {
        completion.opcode = CompletionOpcode::recv;
    }
    srq.session->complete_shared_recv(turn_, completion, datagram);
    srq.receives.give_back(slot);
}

[[gnu::cold]] void Worker::deliver_by_runtime(WorkerSrq& srq, std::uint32_t slot, Status status) noexcept {
    Completion completion;
    completion.status = status;
    completion.flags = kByRuntime;
    deliver(srq, slot, completion);
}

/// A buffer of a receive pool goes to the application. `completion` says what came, and on which queue pair.
[[gnu::noinline]] void Worker::hand_out(PoolTaker& taker, std::uint32_t buffer, Completion& completion,
                                        const ibv_wc* datagram) noexcept {
    WorkerPool& pool = *taker.pool;
    completion.tag = pool_tag(pool.handle, buffer);
    completion.flags |= kFromRecvQueue | kPooled;
    if (completion.opcode != CompletionOpcode::recv_rdma_with_imm) {
        completion.opcode = CompletionOpcode::recv;
    }
    pool.counters->delivered.add();
    pool.counters->held.add();
    pool.buffers.hand_out(buffer, taker, completion.qp, static_cast<std::uint32_t>(pool.counters->delivered.value()));
    ++taker.held;
    pool.session->hand_out(turn_, completion, datagram);
}

/// A record of a write ring goes to the application. `completion` says what came.
[[gnu::noinline]] void Worker::hand_out(WorkerPool& pool, std::uint32_t place, Completion& completion) noexcept {
    completion.tag = pool_tag(pool.handle, place);
    completion.flags |= kFromRecvQueue | kPooled;
    completion.opcode = CompletionOpcode::recv;
    pool.session->hand_out(turn_, completion, nullptr);
    pool.counters->held.add();
}

[[gnu::always_inline]] inline void Worker::retire_entry(WorkerQp& qp, const InFlightEntry& entry) noexcept {
    if (entry.opcode == Opcode::bind_mw) [[unlikely]] {
        end_bind(entry, Status::success);
    }
    entry.session->retire(turn_, qp.handle.index, entry);
}

/// A request of the send queue that is in no table any more ends as `completion` says.
[[gnu::noinline]] void Worker::end_send(WorkerQp& qp, const InFlightEntry& entry, Completion& completion) noexcept {
    if (completion.ok() && !entry.signaled()) {
        retire_entry(qp, entry);
    } else {
        deliver(qp, entry, completion, false);
    }
}

void Worker::complete_unposted(WorkerQp& qp, InFlightTable& table) noexcept {
    while (!table.empty() && !table.front().with_provider()) {
        const InFlightEntry& entry = table.pop();
        if (entry.kind == InFlightEntry::Kind::unposted) {
            deliver_by_runtime(qp, entry, entry.status);
        }
    }
}

}  // namespace pollcore
