#include "served_posts.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "conversions.hpp"

namespace pollcore::served {
namespace {

static_assert(sizeof(ibv_sge) == sizeof(Sge) && offsetof(ibv_sge, length) == offsetof(Sge, length) &&
              offsetof(ibv_sge, lkey) == offsetof(Sge, lkey));

constexpr unsigned kSendFlags = kFence | kSignaled | kSolicited;

std::span<const Sge> sges_of(const ibv_sge* list, int count) noexcept {
    return {reinterpret_cast<const Sge*>(list), static_cast<std::size_t>(count)};
}

// Repeats `call` while the submission ring is full.
template <class Call>
int until_taken(Cq& cq, const Call& call) noexcept {
    constexpr unsigned kTriesOfWorker = 1000;  // on one CPU the worker runs when this thread yields
    for (unsigned tries = 1;; ++tries) {
        const Refusal refusal = call();
        if (refusal != Refusal::submission_ring_full) [[likely]] {
            return errno_of(refusal);
        }
        if (tries % kTriesOfWorker == 0) {
            if (cq.attachment->lost()) {
                return EIO;
            }
            (void)::sched_yield();
        }
    }
}

// Returns whether verbs and pollcore know the operation.
bool convert(const Qp& qp, const ibv_send_wr& wr, WorkRequest& to) noexcept {
    if (wr.opcode > IBV_WR_SEND_WITH_INV || wr.opcode == IBV_WR_BIND_MW) {
        return false;
    }
    to.tag = wr.wr_id;
    to.qp = qp.handle.load(std::memory_order_relaxed);
    to.opcode = static_cast<Opcode>(wr.opcode);
    to.flags = static_cast<std::uint8_t>((wr.send_flags & kSendFlags) | bit_if(qp.signal_all, kSignaled));
    if (qp.qp_base.qp_type == IBV_QPT_UD) {
        if (wr.wr.ud.ah == nullptr) {
            return false;
        }
        to.ud = UdDestination(of(wr.wr.ud.ah).address.handle(), wr.wr.ud.remote_qpn);
        to.remote_qkey = wr.wr.ud.remote_qkey;
    } else if (is_atomic(to.opcode)) {
        to.remote_addr = wr.wr.atomic.remote_addr;
        to.rkey = wr.wr.atomic.rkey;
        to.compare_add = wr.wr.atomic.compare_add;
        to.swap = wr.wr.atomic.swap;
    } else {
        to.remote_addr = wr.wr.rdma.remote_addr;
        to.rkey = wr.wr.rdma.rkey;
    }
    if (has_imm(to.opcode)) {
        to.imm_data = ntohl(wr.imm_data);
    } else if (to.opcode == Opcode::send_with_inv || to.opcode == Opcode::local_inv) {
        to.invalidate_rkey = wr.invalidate_rkey;
    }
    return true;
}

int post_one(Qp& qp, const ibv_send_wr& wr) noexcept {
    WorkRequest request;
    if (!convert(qp, wr, request)) {
        return EINVAL;
    }
    Cq& cq = *qp.send_cq;
    const int num_sge = is_local(request.opcode) ? 0 : wr.num_sge;
    if (static_cast<std::uint32_t>(num_sge) > qp.cap.max_send_sge) {  // also if it is negative
        return EINVAL;
    }
    const auto sges = sges_of(wr.sg_list, num_sge);
    if ((wr.send_flags & IBV_SEND_INLINE) == 0) {
        return submit(cq, request, sges);
    }
    std::array<std::byte, kInlineMax> gathered;
    std::size_t length = 0;
    for (const Sge& one : sges) {
        if (length + one.length > qp.cap.max_inline_data || length + one.length > gathered.size()) {
            return EINVAL;
        }
        if (sges.size() == 1) {
            return submit_inline(cq, request, {reinterpret_cast<const std::byte*>(one.addr), one.length});
        }
        std::memcpy(gathered.data() + length, reinterpret_cast<const void*>(one.addr), one.length);
        length += one.length;
    }
    return submit_inline(cq, request, std::span(gathered).first(length));
}

// Posts a chain by `post`. Returns the error of the first request that was not taken, which is then `bad`.
template <class Wr, class Post>
int post_chain(Wr* wr, Wr** bad, const Post& post) noexcept {
    for (; wr != nullptr; wr = wr->next) {
        if (const int error = post(*wr); error != 0) [[unlikely]] {
            *bad = wr;
            return error;
        }
    }
    return 0;
}

}  // namespace

int submit(Cq& cq, const WorkRequest& request, std::span<const Sge> sges) noexcept {
    if (sges.size() > 1) {
        return until_taken(cq, [&] { return cq.session.try_submit(request, sges); });
    }
    WorkRequest with = request;
    if (!sges.empty()) {
        with.sge = sges.front();
        with.num_sge = 1;
    }
    return until_taken(cq, [&] { return cq.session.try_submit(with); });
}

int submit_inline(Cq& cq, const WorkRequest& request, std::span<const std::byte> payload) noexcept {
    return until_taken(cq, [&] { return cq.session.try_submit_inline(request, payload); });
}

int post_send(ibv_qp* verbs, ibv_send_wr* wr, ibv_send_wr** bad_wr) noexcept {
    Qp& qp = of(verbs);
    const std::lock_guard guard(qp.send_cq->lock);
    qp.send_cq->session.hand_over();
    return post_chain(wr, bad_wr, [&](const ibv_send_wr& one) { return post_one(qp, one); });
}

int post_recv(ibv_qp* verbs, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
    Qp& qp = of(verbs);
    const std::lock_guard guard(qp.recv_cq->lock);
    qp.recv_cq->session.hand_over();
    return post_chain(wr, bad_wr, [&](const ibv_recv_wr& one) {
        if (qp.srq != nullptr || static_cast<std::uint32_t>(one.num_sge) > qp.cap.max_recv_sge) {
            return EINVAL;
        }
        if (qp.cap.max_recv_wr == 0) {
            return ENOMEM;  // the queue pair of the daemon has room for one receive at least
        }
        WorkRequest request;
        request.tag = one.wr_id;
        request.qp = qp.handle.load(std::memory_order_relaxed);
        request.opcode = Opcode::recv;
        return submit(*qp.recv_cq, request, sges_of(one.sg_list, one.num_sge));
    });
}

int post_srq_recv(ibv_srq* verbs, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
    Srq& srq = of(verbs);
    const auto fits = [&](const ibv_recv_wr& one) {
        return static_cast<std::uint32_t>(one.num_sge) <= srq.attributes.max_sge;
    };
    if (srq.cq.load(std::memory_order_acquire) == nullptr) {
        const std::lock_guard guard(srq.lock);
        if (srq.cq.load(std::memory_order_relaxed) == nullptr) {
            return post_chain(wr, bad_wr, [&](const ibv_recv_wr& one) {
                if (!fits(one)) {
                    return EINVAL;
                }
                if (srq.early.size() >= srq.attributes.max_wr) {
                    return ENOMEM;
                }
                try {
                    const auto sges = sges_of(one.sg_list, one.num_sge);
                    srq.early.push_back({one.wr_id, {sges.begin(), sges.end()}});
                } catch (const std::bad_alloc&) {
                    return ENOMEM;
                }
                return 0;
            });
        }
    }
    Cq& cq = *srq.cq.load(std::memory_order_acquire);
    const std::lock_guard guard(cq.lock);
    cq.session.hand_over();
    return post_chain(wr, bad_wr, [&](const ibv_recv_wr& one) {
        if (!fits(one)) {
            return EINVAL;
        }
        WorkRequest request;
        request.tag = one.wr_id;
        request.srq = srq.queue.handle();
        request.opcode = Opcode::srq_recv;
        return submit(cq, request, sges_of(one.sg_list, one.num_sge));
    });
}

void submit_early(Srq& srq) noexcept {
    Cq& cq = *srq.cq.load(std::memory_order_relaxed);
    for (const Srq::Early& one : srq.early) {
        WorkRequest request;
        request.tag = one.tag;
        request.srq = srq.queue.handle();
        request.opcode = Opcode::srq_recv;
        (void)submit(cq, request, one.sges);  // the queue has room for as many as `early`
    }
    srq.early.clear();
}

}  // namespace pollcore::served
