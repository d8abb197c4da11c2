// ibv_wr_start(3) and its companions: requests are collected, and submitted by ibv_wr_complete(). In between a lock of
// the queue pair is held, and none of the completion queue: the thread may poll meanwhile, and post to other queue
// pairs.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "conversions.hpp"
#include "served_posts.hpp"

namespace pollcore::served {
namespace {

constexpr std::uint64_t kOfUd = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
constexpr std::uint64_t kOfUc = kOfUd | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
constexpr std::uint64_t kOfRc =
    kOfUc | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

// Takes the lock that complete() or abort() gives back.
void start(ibv_qp_ex* verbs) noexcept {
    Qp& qp = of(verbs);
    qp.building.lock();
    qp.built_count = 0;
    qp.build_error = 0;
}

void abort(ibv_qp_ex* verbs) noexcept {
    of(verbs).building.unlock();
}

// Unlike a provider this posts the requests before one that has no room.
int complete(ibv_qp_ex* verbs) noexcept {
    Qp& qp = of(verbs);
    Cq& cq = *qp.send_cq;
    int error = qp.build_error;
    {
        const std::lock_guard guard(cq.lock);
        cq.session.hand_over();
        for (std::size_t i = 0; i < qp.built_count && error == 0; ++i) {
            const Built& one = qp.built[i];
            error = one.is_inline ? submit_inline(cq, one.request, one.payload) : submit(cq, one.request, one.sges);
        }
    }
    qp.building.unlock();
    return error;
}

Built* add(ibv_qp_ex* verbs, Opcode opcode) noexcept {
    Qp& qp = of(verbs);
    try {
        if (qp.built_count == qp.built.size()) {
            qp.built.emplace_back();
        }
    } catch (const std::bad_alloc&) {
        qp.build_error = ENOMEM;
        return nullptr;
    }
    Built& one = qp.built[qp.built_count++];
    one.request = {};
    one.request.tag = qp.wr_id;
    one.request.qp = qp.handle.load(std::memory_order_relaxed);
    one.request.opcode = opcode;
    one.request.flags =
        static_cast<std::uint8_t>((qp.wr_flags & (kFence | kSignaled | kSolicited)) | bit_if(qp.signal_all, kSignaled));
    one.sges.clear();
    one.payload.clear();
    one.is_inline = false;
    return &one;
}

// The request that a setter is about.
Built* last(ibv_qp_ex* verbs) noexcept {
    Qp& qp = of(verbs);
    if (qp.build_error != 0 || qp.built_count == 0) {
        qp.build_error = qp.build_error != 0 ? qp.build_error : EINVAL;
        return nullptr;
    }
    return &qp.built[qp.built_count - 1];
}

void remote(Built* one, std::uint32_t rkey, std::uint64_t addr) noexcept {
    if (one != nullptr) {
        one->request.rkey = rkey;
        one->request.remote_addr = addr;
    }
}
void immediate(Built* one, __be32 imm) noexcept {
    if (one != nullptr) {
        one->request.imm_data = ntohl(imm);
    }
}

void send(ibv_qp_ex* qp) noexcept {
    (void)add(qp, Opcode::send);
}
void send_imm(ibv_qp_ex* qp, __be32 imm) noexcept {
    immediate(add(qp, Opcode::send_with_imm), imm);
}
void rdma_write(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr) noexcept {
    remote(add(qp, Opcode::rdma_write), rkey, addr);
}
void rdma_write_imm(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr, __be32 imm) noexcept {
    Built* const one = add(qp, Opcode::rdma_write_with_imm);
    remote(one, rkey, addr);
    immediate(one, imm);
}
void rdma_read(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr) noexcept {
    remote(add(qp, Opcode::rdma_read), rkey, addr);
}
void atomic_cmp_swp(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr, std::uint64_t compare,
                    std::uint64_t swap) noexcept {
    if (Built* const one = add(qp, Opcode::atomic_cmp_and_swp); one != nullptr) {
        remote(one, rkey, addr);
        one->request.compare_add = compare;
        one->request.swap = swap;
    }
}
void atomic_fetch_add(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t addr, std::uint64_t addend) noexcept {
    if (Built* const one = add(qp, Opcode::atomic_fetch_and_add); one != nullptr) {
        remote(one, rkey, addr);
        one->request.compare_add = addend;
    }
}

void set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, std::uint32_t remote_qpn, std::uint32_t remote_qkey) noexcept {
    if (Built* const one = last(qp); one != nullptr) {
        one->request.ud = UdDestination(of(ah).address.handle(), remote_qpn);
        one->request.remote_qkey = remote_qkey;
    }
}

// `body` may run out of memory.
template <class Body>
void fill(ibv_qp_ex* verbs, const Body& body) noexcept {
    if (Built* const one = last(verbs); one != nullptr) {
        try {
            body(*one);
        } catch (const std::bad_alloc&) {
            of(verbs).build_error = ENOMEM;
        }
    }
}

void set_sge(ibv_qp_ex* qp, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length) noexcept {
    fill(qp, [&](Built& one) { one.sges.assign(1, Sge{addr, length, lkey}); });
}
void set_sge_list(ibv_qp_ex* verbs, std::size_t count, const ibv_sge* list) noexcept {
    Qp& qp = of(verbs);
    if (count > qp.cap.max_send_sge) {
        qp.build_error = qp.build_error != 0 ? qp.build_error : EINVAL;
        return;
    }
    fill(verbs, [&](Built& one) {
        const auto* sges = reinterpret_cast<const Sge*>(list);
        one.sges.assign(sges, sges + count);
    });
}
void set_inline_data_list(ibv_qp_ex* verbs, std::size_t count, const ibv_data_buf* list) noexcept {
    Qp& qp = of(verbs);
    fill(verbs, [&](Built& one) {
        for (std::size_t i = 0; i < count; ++i) {
            if (list[i].length > qp.cap.max_inline_data - one.payload.size()) {
                qp.build_error = EINVAL;
                return;
            }
            const auto* bytes = static_cast<const std::byte*>(list[i].addr);
            one.payload.insert(one.payload.end(), bytes, bytes + list[i].length);
        }
        one.is_inline = true;
    });
}
void set_inline_data(ibv_qp_ex* qp, void* addr, std::size_t length) noexcept {
    const ibv_data_buf one{.addr = addr, .length = length};
    set_inline_data_list(qp, 1, &one);
}

}  // namespace

std::uint64_t builders_served(ibv_qp_type type) noexcept {
    return type == IBV_QPT_RC ? kOfRc : type == IBV_QPT_UC ? kOfUc : type == IBV_QPT_UD ? kOfUd : 0;
}

void install_builders(Qp& qp, std::uint64_t ops) noexcept {
    qp.wr_start = start;
    qp.wr_complete = complete;
    qp.wr_abort = abort;
    const auto with = [&](std::uint64_t op, auto& member, auto* function) {
        member = (ops & op) != 0 ? function : nullptr;
    };
    with(IBV_QP_EX_WITH_SEND, qp.wr_send, send);
    with(IBV_QP_EX_WITH_SEND_WITH_IMM, qp.wr_send_imm, send_imm);
    with(IBV_QP_EX_WITH_RDMA_WRITE, qp.wr_rdma_write, rdma_write);
    with(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, qp.wr_rdma_write_imm, rdma_write_imm);
    with(IBV_QP_EX_WITH_RDMA_READ, qp.wr_rdma_read, rdma_read);
    with(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, qp.wr_atomic_cmp_swp, atomic_cmp_swp);
    with(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, qp.wr_atomic_fetch_add, atomic_fetch_add);
    qp.wr_set_ud_addr = set_ud_addr;
    qp.wr_set_sge = set_sge;
    qp.wr_set_sge_list = set_sge_list;
    qp.wr_set_inline_data = set_inline_data;
    qp.wr_set_inline_data_list = set_inline_data_list;
}

}  // namespace pollcore::served
