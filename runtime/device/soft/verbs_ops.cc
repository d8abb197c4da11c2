#include "device/soft/verbs_ops.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"
#include "device/soft/soft_device.hpp"

namespace pollcore::soft {

namespace {

/// Whether QPs of this type may use the opcode (ibv_post_send(3)). The man page also allows send with invalidate on UC.
/// But no UC packet could carry the key, because only RC and XRC have opcodes for it (IBTA 9.2.1).
[[nodiscard]] bool known(ibv_qp_type type, ibv_wr_opcode opcode) noexcept {
    switch (opcode) {
        case IBV_WR_SEND:
        case IBV_WR_SEND_WITH_IMM: return true;
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM:
        case IBV_WR_LOCAL_INV:
        case IBV_WR_BIND_MW: return type != IBV_QPT_UD;
        case IBV_WR_RDMA_READ:
        case IBV_WR_ATOMIC_CMP_AND_SWP:
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
        case IBV_WR_SEND_WITH_INV: return type == IBV_QPT_RC;
        default: return false;
    }
}

[[nodiscard]] bool may_be_inline(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV ||
           opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/// Copies field by field, because the caller has just written the fields one by one. A wider load would wait until the
/// caller's stores have left the store buffer (D10).
void copy_sges(const ibv_sge* from, std::uint32_t count, ibv_sge* to) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
        to[i].addr = from[i].addr;
        to[i].length = from[i].length;
        to[i].lkey = from[i].lkey;
    }
}

/// Asks the fault plan about a work request. Returns the error with which the post is refused, or 0. If the request is
/// to fail later, sets the `status` with which it completes.
[[gnu::cold, gnu::noinline]] int meet_faults(FaultPlan& faults, std::uint32_t qp_num, SoftFault::Kind call,
                                             SoftFault::Kind work, std::uint8_t& status) noexcept {
    if (const auto refused = faults.meet(call, qp_num))
        return refused->error;
    if (const auto failed = faults.meet(work, qp_num))
        status = static_cast<std::uint8_t>(failed->status);
    return 0;
}

/// Hangs, if the fault plan says so, as a provider that does not return. Others may use the device meanwhile. The
/// request is in its queue already, so that another post takes the place behind it.
[[gnu::cold, gnu::noinline]] void hang_if_planned(SoftQp& qp) noexcept {
    if (const auto fault = qp.engine->faults().meet(SoftFault::Kind::hang, qp.qp_num)) {
        qp.engine->lock().unlock();
        qp.engine->faults().wait_out(fault->delay_ns);
        qp.engine->lock().lock();
    }
}

/// Puts a filled-in WQE into the send queue, unless the fault plan refuses the request.
[[nodiscard]] int commit(SoftQp& qp, SendWqe& wqe) noexcept {
    wqe.read_in_flight = false;
    wqe.fault = 0;
    FaultPlan& faults = qp.engine->faults();
    if (faults.armed(SoftFault::Kind::send, SoftFault::Kind::post_send, SoftFault::Kind::hang)) [[unlikely]] {
        const int error = meet_faults(faults, qp.qp_num, SoftFault::Kind::post_send, SoftFault::Kind::send, wqe.fault);
        if (error != 0)
            return error;
        ++qp.sq.posted;
        hang_if_planned(qp);
        return 0;
    }
    ++qp.sq.posted;
    return 0;
}

/// Fills in the WQE of a bind, for a window of either type. The WQE holds the current keys. The engine checks them when
/// it executes the bind.
void fill_bind(SendWqe& wqe, const ibv_mw& window, std::uint32_t new_key, const ibv_mw_bind_info& bind) noexcept {
    wqe.imm = window.rkey;
    wqe.rkey = new_key;
    wqe.remote_addr = bind.addr;
    wqe.compare_add = bind.length;
    wqe.swap = std::uint64_t{bind.mw_access_flags} << 32 | (bind.mr != nullptr ? bind.mr->lkey : 0);
}

/// Enqueues a bind or an invalidation. Its WQE has no SGE.
[[gnu::cold, gnu::noinline]] int enqueue_local(SoftQp& qp, const ibv_send_wr& wr) noexcept {
    if ((wr.send_flags & IBV_SEND_INLINE) != 0)
        return EINVAL;
    SendWqe& wqe = qp.sq.at(qp.sq.posted);
    if (wr.opcode == IBV_WR_LOCAL_INV) {
        wqe.rkey = wr.invalidate_rkey;
    } else if (wr.bind_mw.mw == nullptr || wr.bind_mw.mw->type != IBV_MW_TYPE_2) {
        return EINVAL;  // a window of type 1 is bound by ibv_bind_mw
    } else {
        fill_bind(wqe, *wr.bind_mw.mw, wr.bind_mw.rkey, wr.bind_mw.bind_info);
    }
    wqe.wr_id = wr.wr_id;
    wqe.opcode = static_cast<std::uint8_t>(wr.opcode);
    wqe.flags = static_cast<std::uint8_t>(wr.send_flags);
    wqe.num_sge = 0;
    wqe.length = 0;
    return commit(qp, wqe);
}

/// Returns false if this QP may not use the address handle.
[[nodiscard]] bool copy_destination(SoftQp& qp, const ibv_send_wr& wr) noexcept {
    const auto* ah = static_cast<const SoftAh*>(wr.wr.ud.ah);
    if (ah == nullptr || ah->pd != qp.pd)
        return false;
    constexpr std::uint32_t kPrivileged = 1u << 31;
    Destination& to = qp.destination(qp.sq.posted);
    to.gid = ah->attr.grh.dgid;
    to.qpn = wr.wr.ud.remote_qpn & 0xffffff;
    // A privileged Q_Key is replaced by the QP's own Q_Key (IBTA 10.2.5).
    to.qkey = (wr.wr.ud.remote_qkey & kPrivileged) != 0 ? qp.attr.qkey : wr.wr.ud.remote_qkey;
    to.flow_label = ah->attr.grh.flow_label;
    to.traffic_class = ah->attr.grh.traffic_class;
    to.hop_limit = ah->attr.grh.hop_limit;
    to.service_level = ah->attr.sl;
    return true;
}

/// Enqueues one work request, or returns an errno value. Does not execute the request.
[[nodiscard]] int enqueue(SoftQp& qp, const ibv_send_wr& wr) noexcept {
    if (qp.sq.full())
        return ENOMEM;
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.sq.sges_max || !known(qp.qp_type, wr.opcode)) {
        return EINVAL;
    }
    if (wr.opcode == IBV_WR_LOCAL_INV || wr.opcode == IBV_WR_BIND_MW) [[unlikely]]
        return enqueue_local(qp, wr);
    const auto num_sge = static_cast<std::uint32_t>(wr.num_sge);
    std::uint64_t length = 0;
    for (std::uint32_t i = 0; i < num_sge; ++i)
        length += wr.sg_list[i].length;

    if (qp.qp_type == IBV_QPT_UD && !copy_destination(qp, wr))
        return EINVAL;
    SendWqe& wqe = qp.sq.at(qp.sq.posted);
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
        if (length > qp.inline_max || !may_be_inline(wr.opcode))
            return EINVAL;
        std::byte* to = qp.inline_data(qp.sq.posted);
        for (std::uint32_t i = 0; i < num_sge; ++i) {
            if (wr.sg_list[i].length == 0)
                continue;
            std::memcpy(to, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
            to += wr.sg_list[i].length;
        }
    } else {
        copy_sges(wr.sg_list, num_sge, qp.sq.sges(qp.sq.posted));
    }
    wqe.wr_id = wr.wr_id;
    wqe.opcode = static_cast<std::uint8_t>(wr.opcode);
    wqe.flags = static_cast<std::uint8_t>(wr.send_flags);
    wqe.num_sge = static_cast<std::uint8_t>(num_sge);
    wqe.length = static_cast<std::uint32_t>(std::min<std::uint64_t>(length, std::uint64_t{kMessageMax} + 1));
    wqe.imm = wr.imm_data;
    if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wqe.remote_addr = wr.wr.atomic.remote_addr;
        wqe.rkey = wr.wr.atomic.rkey;
        wqe.compare_add = wr.wr.atomic.compare_add;
        wqe.swap = wr.wr.atomic.swap;
    } else if (wr.opcode == IBV_WR_SEND_WITH_INV) [[unlikely]] {
        wqe.rkey = wr.invalidate_rkey;
    } else if (qp.qp_type != IBV_QPT_UD) {
        wqe.remote_addr = wr.wr.rdma.remote_addr;
        wqe.rkey = wr.wr.rdma.rkey;
    }
    return commit(qp, wqe);
}

/// Enqueues one receive. `qp_num` is 0 for an SRQ.
[[nodiscard]] int enqueue(FaultPlan& faults, std::uint32_t qp_num, WorkQueue<RecvWqe>& rq,
                          const ibv_recv_wr& wr) noexcept {
    if (rq.full())
        return ENOMEM;
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > rq.sges_max)
        return EINVAL;
    RecvWqe& wqe = rq.at(rq.posted);
    wqe.wr_id = wr.wr_id;
    wqe.num_sge = static_cast<std::uint32_t>(wr.num_sge);
    wqe.length = 0;
    for (std::uint32_t i = 0; i < wqe.num_sge; ++i)
        wqe.length += wr.sg_list[i].length;
    copy_sges(wr.sg_list, wqe.num_sge, rq.sges(rq.posted));
    wqe.fault = 0;
    if (faults.armed(SoftFault::Kind::receive, SoftFault::Kind::post_recv)) [[unlikely]] {
        const int error = meet_faults(faults, qp_num, SoftFault::Kind::post_recv, SoftFault::Kind::receive, wqe.fault);
        if (error != 0)
            return error;
    }
    ++rq.posted;
    return 0;
}

/// Enqueues the chain from `wr` on, up to the first request that is refused.
[[nodiscard]] int enqueue_all(int result, FaultPlan& faults, std::uint32_t qp_num, WorkQueue<RecvWqe>& rq,
                              ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
    for (; wr != nullptr; wr = wr->next) {
        if (result == 0)
            result = enqueue(faults, qp_num, rq, *wr);
        if (result != 0) {
            *bad_wr = wr;
            break;
        }
    }
    return result;
}

[[nodiscard]] bool takes_sends(const SoftQp& qp) noexcept {
    return qp.current == IBV_QPS_RTS || qp.current == IBV_QPS_ERR || qp.current == IBV_QPS_SQE;
}

int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad_wr) noexcept {
    auto& qp = static_cast<SoftQp&>(*base);
    const std::lock_guard guard(qp.engine->lock());
    int result = takes_sends(qp) ? 0 : EINVAL;
    for (; wr != nullptr; wr = wr->next) {
        if (result == 0)
            result = enqueue(qp, *wr);
        if (result != 0) {
            *bad_wr = wr;
            break;
        }
    }
    if (qp.tx.cursor != qp.sq.posted || qp.current == IBV_QPS_ERR)
        qp.engine->activate(qp);
    return result;
}

int post_recv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
    auto& qp = static_cast<SoftQp&>(*base);
    const std::lock_guard guard(qp.engine->lock());
    const int allowed = qp.current == IBV_QPS_RESET || qp.shared != nullptr ? EINVAL : 0;
    const int result = enqueue_all(allowed, qp.engine->faults(), qp.qp_num, qp.rq, wr, bad_wr);
    if (qp.current == IBV_QPS_ERR)
        qp.engine->activate(qp);  // so that the receive is flushed
    return result;
}

int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
    auto& srq = static_cast<SoftSrq&>(*base);
    const std::lock_guard guard(srq.engine->lock());
    return enqueue_all(0, srq.engine->faults(), 0, srq.rq, wr, bad_wr);
}

void take(SoftCq& cq, ibv_wc& wc) noexcept {
    cq.place_payload();
    wc = cq.front().wc;
    cq.pop();
}

/// Whether the fault plan lets this poll fail. With the profile's failed_poll_loses_batch, half of the completions that
/// the poll would have returned are then lost: rdma-core's mlx5 moves its consumer index over the completions that it
/// took, and returns only the error.
[[gnu::cold, gnu::noinline]] bool poll_fails(SoftCq& cq, int num_entries, ibv_wc* wc) noexcept {
    const std::uint32_t first_qp = cq.front().wc.qp_num;
    if (!cq.engine->faults().meet(SoftFault::Kind::poll_cq, first_qp))
        return false;
    if (cq.engine->profile().failed_poll_loses_batch) {
        const std::uint32_t there = std::min(cq.tail - cq.head, static_cast<std::uint32_t>(num_entries));
        for (std::uint32_t taken = 0; taken < (there + 1) / 2; ++taken)
            take(cq, wc[taken]);
    }
    return true;
}

int poll_cq(ibv_cq* base, int num_entries, ibv_wc* wc) noexcept {
    SoftCq& cq = SoftCq::of(*base);
    const std::lock_guard guard(cq.engine->lock());
    (void)cq.engine->move();
    if (cq.dead) [[unlikely]]
        return -1;
    if (!cq.empty() && cq.engine->faults().armed(SoftFault::Kind::poll_cq) && poll_fails(cq, num_entries, wc))
        [[unlikely]] {
        return -1;
    }
    int taken = 0;
    for (; taken < num_entries && !cq.empty(); ++taken)
        take(cq, wc[taken]);
    return taken;
}

/// Returns EINVAL for a CQ without a channel, because a thread would wait for the event for ever. The specification
/// does not forbid the call. If the CQ is armed for any completion, arming it for solicited ones changes nothing (IBTA
/// 11.4.2.2).
int req_notify_cq(ibv_cq* base, int solicited_only) noexcept {
    SoftCq& cq = SoftCq::of(*base);
    if (cq.events_to == nullptr)
        return EINVAL;
    if (cq.engine->removed()) [[unlikely]]
        return EIO;
    const std::lock_guard guard(cq.engine->lock());
    if (const auto fault = cq.engine->faults().meet(SoftFault::Kind::req_notify_cq)) [[unlikely]]
        return fault->error;
    cq.armed = std::max(cq.armed, solicited_only != 0 ? Armed::solicited : Armed::any);
    return 0;
}

SoftDevice& device_of(ibv_context* context) noexcept {
    return *static_cast<SoftContext*>(context)->owner;
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept {
    try {
        return device_of(pd->context).create_mw(pd, type);
    } catch (const Error& error) {
        errno = error.code().value();
    } catch (const std::bad_alloc&) {
        errno = ENOMEM;
    }
    return nullptr;
}
int dealloc_mw(ibv_mw* window) noexcept {
    return device_of(window->context).destroy(window);
}

/// Binds a window of type 1. ibv_bind_mw() has checked the type.
int bind_mw(ibv_qp* base, ibv_mw* window, ibv_mw_bind* bind) noexcept {
    auto& qp = static_cast<SoftQp&>(*base);
    const ibv_mw_bind_info& info = bind->bind_info;
    if (window->pd != qp.pd || (info.mr == nullptr && info.length != 0))
        return EINVAL;
    const std::uint32_t new_key = ibv_inc_rkey(window->rkey);
    {
        const std::lock_guard guard(qp.engine->lock());
        if (!takes_sends(qp) || !known(qp.qp_type, IBV_WR_BIND_MW))
            return EINVAL;
        if (qp.sq.full())
            return ENOMEM;
        SendWqe& wqe = qp.sq.at(qp.sq.posted);
        fill_bind(wqe, *window, new_key, info);
        wqe.wr_id = bind->wr_id;
        wqe.opcode = IBV_WR_BIND_MW;
        wqe.flags = static_cast<std::uint8_t>(bind->send_flags);
        wqe.num_sge = 0;
        wqe.length = 0;
        if (const int error = commit(qp, wqe); error != 0)
            return error;
        qp.engine->activate(qp);
    }
    window->rkey = new_key;  // if the bind fails, the caller sets the key back
    return 0;
}

}  // namespace

ibv_context_ops verbs_ops() noexcept {
    ibv_context_ops ops{};
    ops.post_send = post_send;
    ops.post_recv = post_recv;
    ops.poll_cq = poll_cq;
    ops.req_notify_cq = req_notify_cq;
    ops.post_srq_recv = post_srq_recv;
    ops.alloc_mw = alloc_mw;
    ops.bind_mw = bind_mw;
    ops.dealloc_mw = dealloc_mw;
    return ops;
}

}  // namespace pollcore::soft
