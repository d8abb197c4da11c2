#include "worker/ring_pool.hpp"

#include "worker/worker_qp.hpp"

namespace pollcore {

void RingPool::begin(Turn& turn, WorkerQp& qp, Flow& flow, bool in_order) noexcept {
    ring_.begin(qp.handle(), in_order);
    qp_ = &qp;
    flow_ = &flow;
    turn.rings.add(*this);
}

[[gnu::noinline]] std::uint32_t RingPool::take_records(Turn& turn) noexcept {
    if (session().broken()) [[unlikely]] {
        return 0;
    }
    // the application reads this cache line all the time, so fetching the line takes as long as moving it between two
    // cores
    session().prefetch_completions();
    std::uint32_t taken = 0;
    std::uint64_t bytes = 0;
    WriteRing::Record record;
    while (taken < turn.options.complete_burst && !ring_.full()) {
        const WriteRing::Look look = ring_.look(record);
        if (look != WriteRing::Look::record) {
            if (look == WriteRing::Look::lie) [[unlikely]] {
                qp_->fail_flow(turn, FlowFault::too_many_messages);
            }
            if (qp_->in_error() && taken == 0) [[unlikely]] {
                tell_end(turn);
            }
            break;
        }
        Completion completion;
        completion.qp = qp_->handle();
        completion.byte_len = record.header.length;
        completion.imm_data = record.header.imm_data;
        completion.flags = record.header.with_imm ? kWithImm : 0;
        hand_out(turn, record.place, completion);  // the application gets the record before the counts are updated
        ring_.hand_out(record);
        bytes += record.header.length;
        ++taken;
    }
    if (taken != 0) {
        qp_->count_received(bytes, taken);
        counters().delivered.add(taken);
        counters().torn.raise_to(ring_.torn());
        turn.counters.completions.add(taken);
    }
    return taken;
}

// Delivers `completion`, which describes the record.
[[gnu::noinline]] void RingPool::hand_out(Turn& turn, std::uint32_t place, Completion& completion) noexcept {
    completion.tag = pool_tag(handle(), place);
    completion.flags |= kFromRecvQueue | kPooled;
    completion.opcode = CompletionOpcode::recv;
    session().hand_out(turn, completion, nullptr);
    counters().held.add();
}

// The queue pair is in error, and all its messages have been delivered. Sends the final completion: no more messages
// come.
[[gnu::cold]] void RingPool::tell_end(Turn& turn) noexcept {
    if (!ring_.hold_end()) {
        return;  // the application still has an earlier final completion
    }
    Completion completion;
    completion.qp = qp_->handle();
    completion.status = qp_->cause() == Status::success ? Status::wr_flush_err : qp_->cause();
    completion.flags = kByRuntime;
    qp_ = nullptr;
    turn.rings.remove(*this);
    hand_out(turn, WriteRing::kEnd, completion);
}

void RingPool::release(Turn& turn, std::span<const std::uint32_t> places) noexcept {
    for (const std::uint32_t place : places) {
        if (!ring_.release(place)) [[unlikely]] {
            counters().bad_releases.add();
            session().count_refused();
            continue;
        }
        counters().released.add();
        counters().held.add(-1);
    }
    if (qp_ != nullptr && ring_.granted() - told_ >= ring_.lines() / 4) {
        turn.flows.add(*flow_);
    }
}

void RingPool::leave(Turn& turn) noexcept {
    while (qp_ != nullptr && take_records(turn) != 0) {
    }
    if (qp_ != nullptr) {  // the final completion could not be sent, so it is dropped
        qp_ = nullptr;
        turn.rings.remove(*this);
    }
}

}  // namespace pollcore
