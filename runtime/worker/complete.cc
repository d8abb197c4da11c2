// From a CQ to the sessions: each work completion finds its in-flight entry by wr_id.
#include <arpa/inet.h>

#include <cstring>

#include "base/planted.hpp"
#include "session/completion_opcode.hpp"
#include "session/refused_completion.hpp"
#include "worker/reply.hpp"

namespace pollcore {

void Worker::route(WorkerCq& cq, std::uint32_t n) noexcept {
    // Fetching the line from an application that watches it takes as long as a hop, so it begins before anything is known.
    if (cq.served != nullptr) [[likely]] {
        cq.served->completions.prefetch();
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
        device_time_ = device_times_[i];
        route(cq, wcs_[i]);
    }
    device_time_ = 0;
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
        counters_.stale_completions.add();  // of a generation that is gone and was completed then (H3)
        return;
    }
    InFlightTable& table = id.recv ? qp->recvs : qp->sends;
    const std::uint32_t offset = table.offset_of(id.position);
    if (offset >= table.size()) [[unlikely]] {
        counters_.stale_completions.add();
        return;
    }
    if (const InFlightEntry& entry = table.at(id.position); entry.kind <= InFlightEntry::Kind::pooled && entry.signaled()) [[likely]] {
        cq.served = entry.session;
        cq.served->completions.prefetch();
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
        counters_.stale_completions.add();
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
        counters_.stale_completions.add();
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
    counters_.failed_polls.add();
    for (std::uint32_t i = 0; i <= qps_mask_; ++i) {
        WorkerQp* qp = qps_[i];
        if (qp != nullptr && (qp->send_cq == cq.index || qp->recv_cq == cq.index)) {
            qp->leftover_status = Status::fatal_err;
            fail(*qp, Status::fatal_err, false);
        }
    }
    answers_.say(AnswerKind::cq_failed, cq.index, cq.id);
}

// ---- From an in-flight entry to a completion in its session's ring, or to a place given back ----

// `completion` holds what the device said; the rest comes from the entry. `datagram` is what was received, if it was one.
[[gnu::always_inline]] inline void Worker::deliver(WorkerQp& qp, const InFlightEntry& entry, Completion& completion,
                                                   bool from_recv_queue, const ibv_wc* datagram) noexcept {
    completion.tag = entry.tag;
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
    std::uint32_t sampled_at = 0;
    if ((entry.flags & InFlightEntry::kSampled) != 0) [[unlikely]] {
        sampled_at = end_sample(*entry.session, completion.ok());
        std::memcpy(completion.sampled_at, &sampled_at, sizeof(sampled_at));
    }
    // The application first: what follows is seen by nobody else.
    if (!entry.replies_in_line()) [[likely]] {
        publish(*entry.session, completion, datagram);
    } else if (!completion.ok() || !reply(*entry.session, completion.byte_len, sampled_at)) {
        end_reply(*entry.session, completion);
        publish(*entry.session, completion);
    }
    settle(qp, entry, from_recv_queue);
}

/// Of a request that its session looks for in its line, too: it need not any more.
[[gnu::noinline]] void Worker::end_reply(WorkerSession& session, Completion& completion) noexcept {
    session.reply_at = 0;
    completion.flags |= kNotInLine;
}

[[gnu::cold]] void Worker::refuse(WorkerSession& session, const WorkRequest& request, Status status) noexcept {
    counters_.refused_requests.add();
    session.refused.add();
    Completion completion = refused_completion(request, status);
    if ((request.flags & RequestHead::kReplyInLine) != 0 && request.opcode < Opcode::recv) {
        end_reply(session, completion);
    }
    publish(session, completion);
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
    publish(*srq.session, completion, datagram);
    --srq.session->in_flight;
    srq.receives.give_back(slot);
}

[[gnu::cold]] void Worker::deliver_by_runtime(WorkerSrq& srq, std::uint32_t slot, Status status) noexcept {
    Completion completion;
    completion.status = status;
    completion.flags = kByRuntime;
    deliver(srq, slot, completion);
}

// Field by field: a copy of the whole would wait until the small stores that made it have left the store buffer. Returns the last
// eight bytes.
[[gnu::always_inline]] static inline std::uint64_t write_slot(Completion& slot, const Completion& completion) noexcept {
    slot.tag = completion.tag;
    slot.qp = completion.qp;
    slot.byte_len = completion.byte_len;
    slot.imm_data = completion.imm_data;
    slot.srq = completion.srq;
    static_assert(offsetof(Completion, status) == 24 && offsetof(Completion, opcode) == 25 && offsetof(Completion, flags) == 26);
    std::uint32_t sampled_at;
    std::memcpy(&sampled_at, completion.sampled_at, sizeof(sampled_at));
    return std::uint64_t{static_cast<std::uint8_t>(completion.status)} | std::uint64_t{static_cast<std::uint8_t>(completion.opcode)} << 8 |
           std::uint64_t{completion.flags} << 16 | std::uint64_t{sampled_at} << 24;
}

// Its slot was reserved when the request was taken, so this finds room; a consumer that takes slots back
// has tampered with the ring.
[[gnu::always_inline]] inline void Worker::publish(WorkerSession& session, const Completion& completion,
                                                   const ibv_wc* datagram) noexcept {
    if (session.wide) [[unlikely]] {
        publish_wide(session, completion, datagram);
        return;
    }
    if (planted(Bug::lost)) {
        return;
    }
    const auto fill = [&](Completion& slot) { return write_slot(slot, completion); };
    if (planted(Bug::twice)) {
        (void)session.completions.try_push(fill);
    }
    if (!session.completions.try_push(fill)) [[unlikely]] {
        break_session(session);
        return;
    }
    counters_.delivered.add();
    if (session.tells) [[unlikely]] {
        tell(session);
    }
}

// By value: a reference would have every completion made in memory first.
[[gnu::noinline]] void Worker::publish_wide(WorkerSession& session, Completion completion,
                                            const ibv_wc* datagram) noexcept {
    if (session.completions.reserve(2) < 2) [[unlikely]] {
        break_session(session);
        return;
    }
    session.completions.write(0, [&](Completion& slot) { return write_slot(slot, completion); });
    CompletionExtension more;
    if (datagram != nullptr) {
        more.src_qp = datagram->src_qp;
        more.slid = datagram->slid;
        more.pkey_index = datagram->pkey_index;
        more.sl = datagram->sl;
        more.dlid_path_bits = datagram->dlid_path_bits;
    }
    // What the runtime completes while it routes a completion of the device was not completed by that.
    if (session.device_time && completion.ok() && (completion.flags & kByRuntime) == 0) {
        more.device_time = device_time_;
    }
    session.completions.write(1, std::bit_cast<Completion>(more));
    session.completions.commit(2);
    counters_.delivered.add();
    if (session.tells) {
        tell(session);
    }
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
    publish(*pool.session, completion, datagram);
}

/// A record of a write ring goes to the application. `completion` says what came.
[[gnu::noinline]] void Worker::hand_out(WorkerPool& pool, std::uint32_t place, Completion& completion) noexcept {
    completion.tag = pool_tag(pool.handle, place);
    completion.flags |= kFromRecvQueue | kPooled;
    completion.opcode = CompletionOpcode::recv;
    publish(*pool.session, completion);
    pool.counters->held.add();
}

// ---- A request in many is followed ----

// Once in a step: a worker takes and completes in bursts, whose moments are not told apart.
std::uint32_t Worker::sample_clock() noexcept {
    if (sample_step_ != step_ + 1) {
        sample_step_ = step_ + 1;
        sample_now_ = static_cast<std::uint32_t>(options_.clock != nullptr ? options_.clock() : now_);
    }
    return sample_now_;
}

/// Of a session one at a time is followed to its completion.
[[gnu::noinline]] void Worker::begin_sample(WorkerSession& session, InFlightEntry& entry, std::uint32_t submitted_at) noexcept {
    const std::uint32_t now = sample_clock();
    session.stages->submission_ring.add(submitted_at, now);
    if (!session.sampling) {
        session.sampling = true;
        session.sampled_at = now;
        entry.flags |= InFlightEntry::kSampled;
    }
}

/// Returns what Completion::sampled_at is to be.
[[gnu::noinline]] std::uint32_t Worker::end_sample(WorkerSession& session, bool success) noexcept {
    session.sampling = false;
    if (!success) {
        return 0;  // of how long a failure took, this is no measure
    }
    const std::uint32_t now = sample_clock();
    session.stages->device.add(session.sampled_at, now);
    return now | 1;
}

// Gives back what the entry held: its share of the queue and its place among the session's requests.
[[gnu::always_inline]] inline void Worker::settle(WorkerQp& qp, const InFlightEntry& entry,
                                                  bool from_recv_queue) noexcept {
    WorkerSession& session = *entry.session;
    Share& share = session.shares[qp.handle.index];
    if (from_recv_queue || !planted(Bug::kept_reservation)) {
        --(from_recv_queue ? share.recvs : share.sends);
    }
    --session.in_flight;
    session.unsignaled -= !entry.signaled();
}

[[gnu::always_inline]] inline void Worker::retire_entry(WorkerQp& qp, const InFlightEntry& entry) noexcept {
    if (entry.opcode == Opcode::bind_mw) [[unlikely]] {
        end_bind(entry, Status::success);
    }
    settle(qp, entry, false);
    WorkerSession& session = *entry.session;
    if ((entry.flags & InFlightEntry::kSampled) != 0) [[unlikely]] {
        (void)end_sample(session, false);  // when it ended nobody knows: only that a later one has
    }
    Share& share = session.shares[qp.handle.index];
    ++share.retired;
    ++session.retired;
    // Release, with the acquire in Session::refresh_retired: the device is done with the buffer.
    const RetiredWord word{.generation = share.handle.generation, .count = share.retired};
    session.retired_counts[qp.handle.index].store(word.pack(), std::memory_order_release);
    session.header->retired.store(session.retired, std::memory_order_release);
    counters_.retired.add();
    if (session.tells) [[unlikely]] {
        tell(session);  // it may wait for the room
    }
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

[[gnu::cold]] void Worker::break_session(WorkerSession& session) noexcept {
    if (session.broken) {
        return;
    }
    session.broken = true;
    counters_.broken_sessions.add();
    answers_.say(AnswerKind::session_broken, session.index, session.id);
}

}  // namespace pollcore
