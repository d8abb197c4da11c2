#include "worker/worker_pool.hpp"

namespace pollcore {

void BufferPool::release(Turn& turn, std::span<const std::uint32_t> buffers) noexcept {
    for (const std::uint32_t buffer : buffers) {
        if (!buffers_.with_application(buffer)) [[unlikely]] {
            counters().bad_releases.add();
            session().count_refused();
            continue;
        }
        PoolTaker* const taker = buffers_.take_back(buffer);
        counters().released.add();
        counters().held.add(-1);
        if (taker != nullptr) {
            taker->released(turn);
        } else {
            counters().orphaned.add(-1);
        }
    }
}

[[gnu::noinline]] void BufferPool::hand_out(Turn& turn, PoolTaker& taker, std::uint32_t buffer, Completion& completion,
                                            const ibv_wc* datagram) noexcept {
    completion.tag = pool_tag(handle(), buffer);
    completion.flags |= kFromRecvQueue | kPooled;
    if (completion.opcode != CompletionOpcode::recv_rdma_with_imm) {
        completion.opcode = CompletionOpcode::recv;
    }
    ReceivePoolCounters& counted = counters();
    counted.delivered.add();
    counted.held.add();
    buffers_.hand_out(buffer, taker, completion.qp, static_cast<std::uint32_t>(counted.delivered.value()));
    session().hand_out(turn, completion, datagram);
}

[[gnu::cold]] bool PoolTaker::tell_end(Turn& turn, Completion& completion) noexcept {
    if (told_) {
        return true;
    }
    if (posted_ != 0 || available() == 0) {
        return false;
    }
    told_ = true;
    ++held_;
    pool_->hand_out(turn, *this, take(), completion, nullptr);
    pool_->counters().delivered.add(-1);  // the final completion is no message
    return true;
}

}  // namespace pollcore
