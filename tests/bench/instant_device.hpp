// A device that completes at once: the next poll finds every posted signaled request. A measurement on it shows the
// cost of the path to the device and back.
//
// In all other respects this device is a software device. The data path calls a device through the function pointers in
// the context's ops (H24), so it is enough to replace three of these pointers. Receives never complete.
//
// Thread safety: a CQ and its QPs belong to one thread.
#pragma once

#include <bit>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include <infiniband/verbs.h>

namespace pollcore::bench {

class InstantCq {
public:
    explicit InstantCq(int cqe) : mask_(std::bit_ceil(static_cast<std::uint32_t>(cqe)) - 1), entries_(mask_ + 1) {}

    void push(std::uint64_t wr_id, std::uint32_t qp_num) noexcept { entries_[tail_++ & mask_] = {wr_id, qp_num}; }
    int poll(int n, ibv_wc* wc) noexcept {
        int taken = 0;
        for (; taken < n && head_ != tail_; ++taken) {
            const Entry& entry = entries_[head_++ & mask_];
            wc[taken].wr_id = entry.wr_id;
            wc[taken].status = IBV_WC_SUCCESS;
            wc[taken].opcode = IBV_WC_RDMA_WRITE;
            wc[taken].vendor_err = 0;
            wc[taken].byte_len = 0;
            wc[taken].qp_num = entry.qp_num;
            wc[taken].wc_flags = 0;
        }
        return taken;
    }

private:
    struct Entry {
        std::uint64_t wr_id;
        std::uint32_t qp_num;
    };
    std::uint32_t head_ = 0;
    std::uint32_t tail_ = 0;
    std::uint32_t mask_;
    std::vector<Entry> entries_;
};

/// While true, polls find no completions, so that the two halves of a worker's step can be timed one by one.
inline bool completions_held = false;

namespace instant {

/// Makes the queue of a CQ, at the first post. The queue exists until the program ends.
[[gnu::noinline]] inline InstantCq& make(ibv_cq& cq) {
    static std::mutex mutex;
    static std::deque<InstantCq> all;
    const std::lock_guard lock(mutex);
    InstantCq& made = all.emplace_back(cq.cqe);
    cq.cq_context = &made;
    return made;
}

inline int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr**) {
    auto* cq = static_cast<InstantCq*>(qp->send_cq->cq_context);
    if (cq == nullptr) [[unlikely]] {
        cq = &make(*qp->send_cq);
    }
    for (; wr != nullptr; wr = wr->next) {
        if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) {
            cq->push(wr->wr_id, qp->qp_num);
        }
    }
    return 0;
}

inline int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) {
    return 0;
}

inline int poll_cq(ibv_cq* cq, int n, ibv_wc* wc) {
    auto* entries = static_cast<InstantCq*>(cq->cq_context);
    return entries == nullptr || completions_held ? 0 : entries->poll(n, wc);
}

}  // namespace instant

/// Makes a software device complete at once. Call this before anything is created on the device's context.
inline void make_instant(ibv_context& context) noexcept {
    context.ops.post_send = instant::post_send;
    context.ops.post_recv = instant::post_recv;
    context.ops.poll_cq = instant::poll_cq;
}

}  // namespace pollcore::bench
