// From a CQ to the sessions: each work completion finds its in-flight entry by wr_id.
#include <arpa/inet.h>

#include "worker/worker.hpp"

namespace pollcore {

std::uint32_t Worker::complete(WorkerCq& cq) noexcept {
    const int n = ibv_poll_cq(cq.cq, static_cast<int>(options_.complete_burst), wcs_.get());
    if (n < static_cast<int>(options_.complete_burst)) {
        ++cq.emptied;
    }
    if (n <= 0) {
        if (n < 0) [[unlikely]] {
            fail_cq(cq);
        }
        return 0;
    }
    for (int i = 0; i < n; ++i) {
        route(wcs_[static_cast<std::size_t>(i)]);
    }
    cq.taken += static_cast<std::uint64_t>(n);
    counters_.completions.add(static_cast<std::uint64_t>(n));
    return static_cast<std::uint32_t>(n);
}

void Worker::route(const ibv_wc& wc) noexcept {
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
    if (id.recv) {
        complete_recv(*qp, offset, wc);
    } else {
        complete_send(*qp, offset, wc);
    }
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        enter_error(*qp, static_cast<Status>(wc.status));
    }
}

// A completion stands for its work request and for all unsignaled ones before it.
void Worker::complete_send(WorkerQp& qp, std::uint32_t offset, const ibv_wc& wc) noexcept {
    for (; offset > 0; --offset) {
        const InFlightEntry entry = qp.sends.front();
        qp.sends.pop();
        switch (entry.kind) {
            case InFlightEntry::Kind::posted:
                // Signaled ones complete themselves and in order; one that is passed over has been lost by
                // the provider, and the application must not wait for it for ever.
                if (entry.signaled) [[unlikely]] {
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
            case InFlightEntry::Kind::done:
                break;
        }
    }
    const InFlightEntry entry = qp.sends.front();
    qp.sends.pop();
    if (entry.kind == InFlightEntry::Kind::marker) {
        qp.marker_in_flight = false;
    } else if (wc.status == IBV_WC_SUCCESS && !entry.signaled) {
        retire_entry(qp, entry);  // the signal was the worker's own
    } else {
        Completion completion;
        completion.status = static_cast<Status>(wc.status);
        if (wc.status != IBV_WC_SUCCESS) {
            completion.vendor_err = wc.vendor_err;
        } else if (entry.opcode == Opcode::rdma_read || is_atomic(entry.opcode)) {
            completion.byte_len = wc.byte_len;
        }
        deliver(qp, entry, completion);
    }
    drain_unposted(qp, qp.sends);
    if (qp.cover_wanted) [[unlikely]] {
        cover(qp);
    }
}

void Worker::complete_recv(WorkerQp& qp, std::uint32_t offset, const ibv_wc& wc) noexcept {
    InFlightEntry& entry = qp.recvs.at(qp.recvs.head_position() + offset);
    if (entry.kind != InFlightEntry::Kind::posted) [[unlikely]] {
        counters_.stale_completions.add();
        return;
    }
    Completion completion;
    completion.status = static_cast<Status>(wc.status);
    if (wc.status != IBV_WC_SUCCESS) {
        completion.vendor_err = wc.vendor_err;
    } else {
        completion.byte_len = wc.byte_len;
        if (wc.wc_flags & IBV_WC_WITH_IMM) {
            completion.flags = kWithImm;
            completion.imm_data = ntohl(wc.imm_data);
        }
        if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
            completion.opcode = CompletionOpcode::recv_rdma_with_imm;
        }
    }
    deliver(qp, entry, completion);
    entry.kind = InFlightEntry::Kind::done;
    drain_unposted(qp, qp.recvs);
}

void Worker::fail_cq(WorkerCq& cq) noexcept {
    cq.failed = true;
    counters_.failed_polls.add();
    for (std::uint32_t i = 0; i <= qps_mask_; ++i) {
        WorkerQp* qp = qps_[i];
        if (qp != nullptr && (qp->send_cq == cq.index || qp->recv_cq == cq.index)) {
            qp->leftover_status = Status::fatal_err;
            enter_error(*qp, Status::fatal_err);
        }
    }
    answer(0, AnswerKind::cq_failed, cq.index);
}

}  // namespace pollcore
