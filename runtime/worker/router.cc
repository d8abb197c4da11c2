#include "worker/router.hpp"

#include <arpa/inet.h>

#include <array>
#include <utility>

#include "base/planted.hpp"
#include "worker/ordinary.hpp"

namespace pollcore {
namespace {

/// Copies the valid fields of a receive's work completion, and counts the receive. If a datagram was received, returns
/// `wc`, because it contains the datagram's sender; else returns null.
[[gnu::always_inline]] inline const ibv_wc* take_recv_fields(WorkerQp* qp, const ibv_wc& wc,
                                                             Completion& completion) noexcept {
    completion.status = static_cast<Status>(wc.status);
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        completion.vendor_err = wc.vendor_err;
        return nullptr;
    }
    completion.byte_len = wc.byte_len;
    if (qp != nullptr) [[likely]] {
        qp->count_received(wc.byte_len);
    }
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
    if (qp == nullptr || !qp->datagram()) [[likely]] {
        return nullptr;
    }
    completion.flags |= (wc.wc_flags & IBV_WC_GRH) != 0 ? kDatagram | kWithGrh : kDatagram;
    return &wc;
}

}  // namespace

void Router::route(WorkerCq& cq, std::uint32_t n) noexcept {
    // The application polls the slot of the next completion, so the slot's line is in the application's cache. Moving
    // it to this core takes long, and therefore begins before the first completion is read (D3).
    if (cq.served() != nullptr) [[likely]] {
        cq.served()->prefetch_completions();
    }
    if (tables_.many_qps()) {
        prefetch_entries(n);
    }
    if (n > 1 && planted(Bug::swapped)) {
        std::swap(wcs_[0], wcs_[1]);
    }
    for (std::uint32_t i = 0; (i = route_ordinary(turn_, tables_, cq, wcs_.data(), i, n)) < n; ++i) {
        route(cq, wcs_[i]);
    }
}

// The wr_id of a completion says nothing about who has made it, but the QP number does: only the worker posts to the
// queue pairs that the worker knows.
void Router::disown_foreign(const WorkerCq& cq, std::uint32_t n) noexcept {
    for (std::uint32_t i = 0; i < n; ++i) {
        ibv_wc& wc = wcs_[i];
        const WorkerQp* qp = nullptr;
        if (SrqWrId::names(wc.wr_id)) {
            const WorkerSrq* const srq = tables_.find(SrqWrId::unpack(wc.wr_id).srq);
            qp = srq != nullptr ? srq->find(wc.qp_num) : nullptr;
        } else {
            qp = tables_.find(WrId::unpack(wc.wr_id).qp);
        }
        if (qp == nullptr || qp->qp_num() != wc.qp_num || !qp->completes_on(cq)) [[unlikely]] {
            wc.wr_id = WrId{}.pack();  // names no queue pair, so it counts as stale
        }
    }
}

// Routes completions of a CQ with time stamps. All of them go the general way, even those of sessions that did not
// ask for the device's time (D37).
[[gnu::noinline]] void Router::route_with_times(WorkerCq& cq, std::uint32_t n) noexcept {
    for (std::uint32_t i = 0; i < n; ++i) {
        turn_.set_device_time(device_times_[i]);
        route(cq, wcs_[i]);
    }
    turn_.set_device_time(0);
}

// Prefetches the lines that the first `n` of wcs_ need, as Submitter::prefetch_qps() does for requests. The wr_id of a
// shared receive names no queue pair, so for such a completion lines are prefetched in vain.
[[gnu::noinline]] void Router::prefetch_entries(std::uint32_t n) noexcept {
    std::array<const WorkerQp*, kBurstMax> qps;
    for (std::uint32_t i = 0; i < n; ++i) {
        qps[i] = tables_.qp_at(WrId::unpack(wcs_[i].wr_id).qp.index);
        WorkerQp::prefetch(qps[i]);
    }
    for (std::uint32_t i = 0; i < n; ++i) {
        if (qps[i] != nullptr) {
            const WrId id = WrId::unpack(wcs_[i].wr_id);
            id.recv ? qps[i]->recvs().prefetch(id.position) : qps[i]->sends().entries().prefetch(id.position);
        }
    }
}

[[gnu::always_inline]] inline void Router::route(WorkerCq& cq, const ibv_wc& wc) noexcept {
    if (SrqWrId::names(wc.wr_id)) [[unlikely]] {
        return complete_shared_recv(wc);
    }
    const WrId id = WrId::unpack(wc.wr_id);
    WorkerQp* qp = tables_.find(id.qp);
    if (qp == nullptr) [[unlikely]] {
        // the generation of this queue pair has ended, and its requests were completed then (H3)
        turn_.counters.stale_completions.add();
        return;
    }
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        qp->count_error(wc.status);
        // fail() comes first, so that a session that sees the completion also sees the error.
        qp->fail(turn_, static_cast<Status>(wc.status));
    }
    if (id.recv) {
        complete_recv(cq, *qp, id.position, wc);
    } else {
        complete_send(cq, *qp, id.position, wc);
    }
}

/// Notes the session of this entry, because the next completion is most likely for it, too.
[[gnu::always_inline]] inline void Router::serve(WorkerCq& cq, const InFlightEntry& entry) noexcept {
    if (entry.kind <= InFlightEntry::Kind::pooled && entry.signaled()) [[likely]] {
        cq.serve(entry.session);
        entry.session->prefetch_completions();
    }
}

[[gnu::always_inline]] inline void Router::complete_send(WorkerCq& cq, WorkerQp& qp, std::uint32_t position,
                                                         const ibv_wc& wc) noexcept {
    InFlightTable& sends = qp.sends().entries();
    const std::uint32_t offset = sends.offset_of(position);
    if (offset >= sends.size()) [[unlikely]] {
        turn_.counters.stale_completions.add();
        return;
    }
    serve(cq, sends.at(sends.head_position() + offset));
    qp.complete_send(turn_, offset, wc);
}

[[gnu::always_inline]] inline void Router::complete_recv(WorkerCq& cq, WorkerQp& qp, std::uint32_t place,
                                                         const ibv_wc& wc) noexcept {
    const InFlightEntry* entry = qp.recvs().find(place);
    if (entry == nullptr) [[unlikely]] {
        turn_.counters.stale_completions.add();
        return;
    }
    serve(cq, *entry);
    Completion completion;
    const ibv_wc* datagram = take_recv_fields(&qp, wc, completion);
    completion.qp = qp.handle();
    qp.recvs().complete(turn_, place, *entry, completion, qp.asked(), datagram);
    if (qp.in_error()) [[unlikely]] {
        qp.look_again(turn_);
    }
}

[[gnu::noinline]] void Router::complete_shared_recv(const ibv_wc& wc) noexcept {
    const SrqWrId id = SrqWrId::unpack(wc.wr_id);
    WorkerSrq* srq = tables_.find(id.srq);
    const InFlightEntry* entry = srq != nullptr ? srq->recvs().find(id.slot) : nullptr;
    if (entry == nullptr) [[unlikely]] {
        turn_.counters.stale_completions.add();
        return;
    }
    if (wc.status != IBV_WC_SUCCESS && planted(Bug::kept_shared)) {
        return;
    }
    WorkerQp* qp = srq->find(wc.qp_num);
    Completion completion;
    const ibv_wc* datagram = take_recv_fields(qp, wc, completion);
    // If no queue pair has this number, the provider made an error, but the receive has completed nevertheless (D20).
    if (qp != nullptr) [[likely]] {
        completion.qp = qp->handle();
    }
    if (wc.status != IBV_WC_SUCCESS && qp != nullptr) [[unlikely]] {
        qp->count_error(wc.status);
        // before the completion, so that the session also sees the error
        qp->fail(turn_, static_cast<Status>(wc.status));
    }
    srq->recvs().complete(turn_, id.slot, *entry, completion, qp != nullptr ? qp->asked() : nullptr, datagram);
}

void Router::fail(WorkerCq& cq) noexcept {
    cq.fail();
    turn_.counters.failed_polls.add();
    for (std::uint32_t i = 0; i < tables_.qps().size(); ++i) {
        WorkerQp* qp = tables_.qps().at(i);
        if (qp != nullptr && qp->completes_on(cq)) {
            qp->lose_cq(turn_);
        }
    }
    turn_.answers.say(AnswerKind::cq_failed, cq.index(), cq.options().id);
}

}  // namespace pollcore
