// A device that completes at once and moves data within this process: a send fills the peer's oldest receive, and a
// write fills the memory at its remote address. Instruction counts on it show the runtime's work for a message.
//
// In all other respects this device is a software device, as in instant_device.hpp. Receives have one SGE; there is no
// immediate data.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include <infiniband/verbs.h>

namespace pollcore::bench::moving {

/// A queue of fixed capacity that never allocates.
template <class T>
class Queue {
public:
    void push(const T& one) {
        if (tail_ - head_ == kMost) {
            std::fputs("moving_device: a queue is full\n", stderr);
            std::abort();
        }
        all_[tail_++ % kMost] = one;
    }
    [[nodiscard]] bool empty() const noexcept { return head_ == tail_; }
    [[nodiscard]] const T& pop() noexcept { return all_[head_++ % kMost]; }

private:
    static constexpr std::uint32_t kMost = 1024;
    std::uint32_t head_ = 0;
    std::uint32_t tail_ = 0;
    T all_[kMost];
};

struct Receive {
    std::uint64_t wr_id;
    std::uint64_t addr;
};
struct End {
    ibv_qp* peer = nullptr;
    Queue<Receive> receives;
};

template <class T>
T& kept(void*& context) {
    static std::deque<T> all;  // kept until the program ends
    if (context == nullptr) {
        context = &all.emplace_back();
    }
    return *static_cast<T*>(context);
}
inline End& end_of(ibv_qp& qp) {
    return kept<End>(qp.qp_context);
}
inline Queue<ibv_wc>& entries_of(ibv_cq& cq) {
    return kept<Queue<ibv_wc>>(cq.cq_context);
}

// Does not call memcpy(), whose number of instructions depends on the CPU.
inline std::uint64_t copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) noexcept {
    std::uint64_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        __builtin_memcpy(reinterpret_cast<void*>(to + at), reinterpret_cast<const void*>(from + at), 8);
        asm volatile("" ::: "memory");  // keeps the compiler from replacing the loop by memcpy()
    }
    for (; at < bytes; ++at) {
        *reinterpret_cast<std::byte*>(to + at) = *reinterpret_cast<const std::byte*>(from + at);
        asm volatile("" ::: "memory");
    }
    return bytes;
}
inline std::uint64_t gather(std::uint64_t to, const ibv_send_wr& wr) noexcept {
    std::uint64_t bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i) {
        bytes += copy(to + bytes, wr.sg_list[i].addr, wr.sg_list[i].length);
    }
    return bytes;
}

inline void complete(ibv_cq& cq, const ibv_qp& qp, std::uint64_t wr_id, ibv_wc_opcode opcode, std::uint64_t bytes) {
    ibv_wc wc{};
    wc.wr_id = wr_id;
    wc.opcode = opcode;
    wc.byte_len = static_cast<std::uint32_t>(bytes);
    wc.qp_num = qp.qp_num;
    entries_of(cq).push(wc);
}

inline int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr**) {
    for (; wr != nullptr; wr = wr->next) {
        if (wr->opcode == IBV_WR_RDMA_WRITE) {
            (void)gather(wr->wr.rdma.remote_addr, *wr);
        } else if (ibv_qp* const peer = end_of(*qp).peer;
                   wr->opcode == IBV_WR_SEND && !end_of(*peer).receives.empty()) {
            const Receive receive = end_of(*peer).receives.pop();
            complete(*peer->recv_cq, *peer, receive.wr_id, IBV_WC_RECV, gather(receive.addr, *wr));
        } else {
            std::fputs("moving_device: a message met no receive, or is of another kind\n", stderr);
            std::abort();
        }
        if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) {
            complete(*qp->send_cq, *qp, wr->wr_id, IBV_WC_SEND, 0);
        }
    }
    return 0;
}

inline int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr**) {
    for (; wr != nullptr; wr = wr->next) {
        end_of(*qp).receives.push({wr->wr_id, wr->sg_list[0].addr});
    }
    return 0;
}

inline int poll_cq(ibv_cq* cq, int n, ibv_wc* wc) {
    Queue<ibv_wc>& entries = entries_of(*cq);
    int taken = 0;
    for (; taken < n && !entries.empty(); ++taken) {
        wc[taken] = entries.pop();
    }
    return taken;
}

/// Makes a software device complete at once and move data. Call this before anything is created on the device.
inline void make_moving(ibv_context& context) noexcept {
    context.ops.post_send = post_send;
    context.ops.post_recv = post_recv;
    context.ops.poll_cq = poll_cq;
}

inline void connect(ibv_qp& a, ibv_qp& b) {
    end_of(a).peer = &b;
    end_of(b).peer = &a;
}

}  // namespace pollcore::bench::moving
