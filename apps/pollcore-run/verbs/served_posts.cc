#include "served_posts.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>

#include "conversions.hpp"

namespace pollcore::served {
namespace {

static_assert(sizeof(ibv_sge) == sizeof(Sge) && offsetof(ibv_sge, length) == offsetof(Sge, length) &&
              offsetof(ibv_sge, lkey) == offsetof(Sge, lkey));

constexpr unsigned kSendFlags = kFence | kSignaled | kSolicited;
constexpr std::size_t kChainBurst = 16;  // requests of a chain that go to the session together

std::span<const Sge> sges_of(const ibv_sge* list, int count) noexcept {
    return {reinterpret_cast<const Sge*>(list), static_cast<std::size_t>(count)};
}

// Repeats `call` while the submission ring is full.
template <class Call>
[[gnu::noinline]] int until_there_is_room(Cq& cq, const Call& call) noexcept {
    constexpr unsigned kTriesOfWorker = 1000;  // on one CPU the worker runs when this thread yields
    for (unsigned tries = 1;; ++tries) {
        const Refusal refusal = call();
        if (refusal != Refusal::submission_ring_full) {
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

template <class Call>
[[gnu::always_inline]] inline int until_taken(Cq& cq, const Call& call) noexcept {
    const Refusal refusal = call();
    return refusal == Refusal::none                   ? 0
           : refusal == Refusal::submission_ring_full ? until_there_is_room(cq, call)
                                                      : errno_of(refusal);
}

// Returns whether verbs and pollcore know the operation.
[[gnu::always_inline]] inline bool convert(const Qp& qp, const ibv_send_wr& wr, WorkRequest& to) noexcept {
    const unsigned opcode = number_of(wr.opcode);
    if (opcode > IBV_WR_SEND_WITH_INV || opcode == IBV_WR_BIND_MW) {
        return false;
    }
    to.tag = wr.wr_id;
    to.qp = qp.handle.load(std::memory_order_relaxed);
    to.opcode = static_cast<Opcode>(opcode);
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

// A request that is `in_pieces` has no scatter-gather list yet, because the list does not fit into a WorkRequest. Nor
// has it kInline.
enum class Made { whole, in_pieces, refused };

// Makes the request of `wr`.
[[gnu::always_inline]] inline Made make(const Qp& qp, const ibv_send_wr& wr, WorkRequest& to) noexcept {
    if (!convert(qp, wr, to)) {
        return Made::refused;
    }
    const int num_sge = is_local(to.opcode) ? 0 : wr.num_sge;
    if (static_cast<std::uint32_t>(num_sge) > qp.cap.max_send_sge) {  // also if it is negative
        return Made::refused;
    }
    if (num_sge > 1) {
        return Made::in_pieces;
    }
    if (num_sge == 1) {
        to.num_sge = 1;
        to.sge = sges_of(wr.sg_list, 1).front();
    }
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
        to.flags |= kInline;
        return to.sge.length <= qp.cap.max_inline_data ? Made::whole : Made::refused;
    }
    return Made::whole;
}

[[gnu::always_inline]] inline int submit_whole(Cq& cq, const WorkRequest& request) noexcept {
    if ((request.flags & kInline) != 0) {
        return submit_inline(cq, request, {reinterpret_cast<const std::byte*>(request.sge.addr), request.sge.length});
    }
    return until_taken(cq, [&] { return cq.session.try_submit(request); });
}

int submit_pieces(Qp& qp, const ibv_send_wr& wr, const WorkRequest& request) noexcept {
    const auto sges = sges_of(wr.sg_list, wr.num_sge);
    if ((wr.send_flags & IBV_SEND_INLINE) == 0) {
        return submit(*qp.send_cq, request, sges);
    }
    std::array<std::byte, kInlineMax> gathered;
    std::size_t length = 0;
    for (const Sge& one : sges) {
        if (length + one.length > qp.cap.max_inline_data || length + one.length > gathered.size()) {
            return EINVAL;
        }
        std::memcpy(gathered.data() + length, reinterpret_cast<const void*>(one.addr), one.length);
        length += one.length;
    }
    return submit_inline(*qp.send_cq, request, std::span(gathered).first(length));
}

// Inlined, because a program that waits for each completion pays for each call.
[[gnu::always_inline]] inline int post_one(Qp& qp, const ibv_send_wr& wr) noexcept {
    WorkRequest request;
    const Made made = make(qp, wr, request);
    return made == Made::whole       ? submit_whole(*qp.send_cq, request)
           : made == Made::in_pieces ? submit_pieces(qp, wr, request)
                                     : EINVAL;
}

// Uninitialised room: a request begins to exist when post_chain() constructs it.
union Burst {
    Burst() noexcept {}
    WorkRequest requests[kChainBurst];
};

// Those requests of the chain `wr` that are whole go to the session together, so that the worker gives them to the
// device together. Returns the error of the first request that was not taken, which is then `bad`.
[[gnu::noinline]] int post_chain(Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad) noexcept {
    Burst burst;
    while (wr != nullptr) {
        std::size_t count = 0;
        Made made = Made::whole;
        ibv_send_wr* next = wr;
        for (; next != nullptr && count < kChainBurst; next = next->next, ++count) {
            if (made = make(qp, *next, *std::construct_at(&burst.requests[count])); made != Made::whole) {
                break;
            }
        }
        auto rest = std::span<const WorkRequest>(burst.requests, count);
        int error = rest.empty() ? 0 : until_taken(*qp.send_cq, [&] {
            const Submitted some = qp.send_cq->session.try_submit(rest);
            rest = rest.subspan(some.accepted);
            return some.refusal;
        });
        for (std::size_t taken = count - rest.size(); taken > 0; --taken) {
            wr = wr->next;
        }
        if (error == 0 && made != Made::whole) {
            error = made == Made::in_pieces ? submit_pieces(qp, *wr, burst.requests[count]) : EINVAL;
            next = wr->next;
        }
        if (error != 0) [[unlikely]] {
            *bad = wr;
            return error;
        }
        wr = next;
    }
    return 0;
}

// Posts the chain `wr` one by one. Returns the error of the first receive that was not taken, which is then `bad`.
template <class Post>
int post_each(ibv_recv_wr* wr, ibv_recv_wr** bad, const Post& post) noexcept {
    for (; wr != nullptr; wr = wr->next) {
        if (const int error = post(*wr); error != 0) [[unlikely]] {
            *bad = wr;
            return error;
        }
    }
    return 0;
}

// Keeps receives until the shared receive queue has a session. The caller has the lock of `srq`.
int keep_early(Srq& srq, ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept {
    return post_each(wr, bad, [&](const ibv_recv_wr& one) {
        if (static_cast<std::uint32_t>(one.num_sge) > srq.attributes.max_sge) {
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
    if (wr == nullptr || wr->next != nullptr) {
        return post_chain(qp, wr, bad_wr);
    }
    const int error = post_one(qp, *wr);
    if (error != 0) [[unlikely]] {
        *bad_wr = wr;
    }
    return error;
}

int post_recv(ibv_qp* verbs, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
    Qp& qp = of(verbs);
    const std::lock_guard guard(qp.recv_cq->lock);
    qp.recv_cq->session.hand_over();
    return post_each(wr, bad_wr, [&](const ibv_recv_wr& one) {
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
    if (srq.cq.load(std::memory_order_acquire) == nullptr) {
        const std::lock_guard guard(srq.lock);
        if (srq.cq.load(std::memory_order_relaxed) == nullptr) {
            return keep_early(srq, wr, bad_wr);
        }
    }
    Cq& cq = *srq.cq.load(std::memory_order_acquire);
    const std::lock_guard guard(cq.lock);
    cq.session.hand_over();
    return post_each(wr, bad_wr, [&](const ibv_recv_wr& one) {
        if (static_cast<std::uint32_t>(one.num_sge) > srq.attributes.max_sge) {
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
