#include "device/soft/verbs_ops.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"

namespace pollcore::soft {

namespace {

[[nodiscard]] bool known(ibv_wr_opcode opcode) noexcept {
    switch (opcode) {
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM:
        case IBV_WR_SEND:
        case IBV_WR_SEND_WITH_IMM:
        case IBV_WR_RDMA_READ:
        case IBV_WR_ATOMIC_CMP_AND_SWP:
        case IBV_WR_ATOMIC_FETCH_AND_ADD: return true;
        default: return false;
    }
}

[[nodiscard]] bool may_be_inline(ibv_wr_opcode opcode) noexcept {
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE ||
           opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/// Field by field, as they were written a moment ago: a wider load would wait until the caller's stores have left
/// its store buffer.
void copy_sges(const ibv_sge* from, std::uint32_t count, ibv_sge* to) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
        to[i].addr = from[i].addr;
        to[i].length = from[i].length;
        to[i].lkey = from[i].lkey;
    }
}

/// Takes one work request in, or says why not. Nothing of it is executed here.
[[nodiscard]] int enqueue(SoftQp& qp, const ibv_send_wr& wr) noexcept {
    if (qp.sq.full())
        return ENOMEM;
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.sq.sges_max || !known(wr.opcode))
        return EINVAL;
    const auto num_sge = static_cast<std::uint32_t>(wr.num_sge);
    std::uint64_t length = 0;
    for (std::uint32_t i = 0; i < num_sge; ++i)
        length += wr.sg_list[i].length;

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
    wqe.read_in_flight = false;
    if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wqe.remote_addr = wr.wr.atomic.remote_addr;
        wqe.rkey = wr.wr.atomic.rkey;
        wqe.compare_add = wr.wr.atomic.compare_add;
        wqe.swap = wr.wr.atomic.swap;
    } else {
        wqe.remote_addr = wr.wr.rdma.remote_addr;
        wqe.rkey = wr.wr.rdma.rkey;
    }
    ++qp.sq.posted;
    return 0;
}

[[nodiscard]] int enqueue(SoftQp& qp, const ibv_recv_wr& wr) noexcept {
    if (qp.rq.full())
        return ENOMEM;
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.rq.sges_max)
        return EINVAL;
    RecvWqe& wqe = qp.rq.at(qp.rq.posted);
    wqe.wr_id = wr.wr_id;
    wqe.num_sge = static_cast<std::uint32_t>(wr.num_sge);
    wqe.length = 0;
    for (std::uint32_t i = 0; i < wqe.num_sge; ++i)
        wqe.length += wr.sg_list[i].length;
    copy_sges(wr.sg_list, wqe.num_sge, qp.rq.sges(qp.rq.posted));
    ++qp.rq.posted;
    return 0;
}

int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad_wr) noexcept {
    auto& qp = static_cast<SoftQp&>(*base);
    const std::lock_guard guard(qp.engine->lock());
    int result = qp.current == IBV_QPS_RTS || qp.current == IBV_QPS_ERR ? 0 : EINVAL;
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
    int result = qp.current == IBV_QPS_RESET ? EINVAL : 0;
    for (; wr != nullptr; wr = wr->next) {
        if (result == 0)
            result = enqueue(qp, *wr);
        if (result != 0) {
            *bad_wr = wr;
            break;
        }
    }
    if (qp.current == IBV_QPS_ERR)
        qp.engine->activate(qp);  // to be flushed
    return result;
}

int poll_cq(ibv_cq* base, int num_entries, ibv_wc* wc) noexcept {
    SoftCq& cq = SoftCq::of(*base);
    const std::lock_guard guard(cq.engine->lock());
    (void)cq.engine->move();
    if (cq.dead) [[unlikely]]
        return -1;
    int taken = 0;
    for (; taken < num_entries && !cq.empty(); ++taken) {
        wc[taken] = cq.front().wc;
        cq.pop();
    }
    return taken;
}

int req_notify_cq(ibv_cq*, int) noexcept {
    return EOPNOTSUPP;
}
int post_srq_recv(ibv_srq*, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
    *bad_wr = wr;
    return EOPNOTSUPP;
}
ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) noexcept {
    errno = EOPNOTSUPP;
    return nullptr;
}
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) noexcept {
    return EOPNOTSUPP;
}
int dealloc_mw(ibv_mw*) noexcept {
    return EOPNOTSUPP;
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
