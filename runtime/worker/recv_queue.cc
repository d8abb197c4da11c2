#include "worker/recv_queue.hpp"

#include <algorithm>
#include <utility>

#include "worker/flow.hpp"
#include "worker/worker_qp.hpp"

namespace pollcore {

// ---- Posting ----

bool RecvQueue::fill(Turn& turn, std::uint32_t& posted) noexcept {
    BufferPool& pool = *pool_.pool();
    if (qp_ != nullptr && qp_->parked()) {
        return true;
    }
    if (ended_ || pool.session().broken() || (qp_ != nullptr && qp_->life() == QpLife::reset)) {
        return false;  // a queue pair that leaves RESET is filled then
    }
    // If the completion of an entry never came, the entry and all entries behind it keep their places. So the table may
    // have less room than the taker's counts suggest.
    const std::uint32_t n = std::min({pool_.available(), table_.room(), kFillMax});
    pool_.count_taken(n);
    for (std::uint32_t i = 0; i < n; ++i) {
        const std::uint32_t buffer = pool_.take();
        const std::uint32_t place = table_.push();
        table_.at(place) = {.tag = pool_tag(pool.handle(), buffer),
                            .session = &pool.session(),
                            .lkey = pool.memory().lkey,
                            .opcode = qp_ != nullptr ? Opcode::recv : Opcode::srq_recv,
                            .flags = kSignaled,
                            .num_sge = 1,
                            .kind = InFlightEntry::Kind::pooled};
        ibv_sge* const sge = turn.chains.take_sges(1);
        *sge = pool.sge(buffer);
        chain(turn, place, {sge, 1});
    }
    turn.counters.receives.add(n);
    pool.counters().refills.add(n != 0);
    posted += n;
    return n == kFillMax;
}

void RecvQueue::post(Turn& turn) noexcept {
    ibv_recv_wr* next = std::exchange(head_, nullptr);
    tail_ = nullptr;
    std::uint32_t n = std::exchange(chained_, 0u);
    while (next != nullptr) {
        ibv_recv_wr* bad = nullptr;
        turn.counters.receive_doorbells.add();
        if (post_chain(next, bad) == 0) [[likely]] {
            break;
        }
        // The receives before `bad` were posted. The loop also posts the receives behind `bad`, because they may belong
        // to another session.
        bad = bad != nullptr ? bad : next;
        next = bad->next;
        refuse(turn, *bad);
        --n;
    }
    if (watcher_ != nullptr && n != 0) [[unlikely]] {
        watcher_->receives_posted(turn, n);
    }
}

// A refused receive was never in the provider's queue, so its completion has no place in the queue's order. It is
// delivered at once, like an error that a post returns (D19).
[[gnu::cold]] void RecvQueue::refuse(Turn& turn, ibv_recv_wr& bad) noexcept {
    const auto place = static_cast<std::uint32_t>(bad.wr_id) & WrId::kPositionMask;
    const InFlightEntry entry = table_.at(place);
    if (table_.erase(place)) {
        for (ibv_recv_wr* wr = bad.next; wr != nullptr; wr = wr->next) {
            wr->wr_id = id_base_ | ((wr->wr_id - 1) & WrId::kPositionMask);
        }
    }
    turn.counters.post_failures.add();
    if (entry.kind != InFlightEntry::Kind::pooled) {
        complete_by_runtime(turn, entry, Status::post_refused);
    } else {
        pool_.return_unused(static_cast<std::uint32_t>(entry.tag));
        // If a receive of the pool is still posted, the queue is refilled when that receive completes. Otherwise the
        // queue is refilled in the next step.
        if (pool_.posted() == 0) {
            refill(turn);
        }
    }
    complete_unposted(turn);
}

// ---- Completing ----

void RecvQueue::complete_pooled(Turn& turn, std::uint32_t buffer, Completion& completion, Flow* flow,
                                const ibv_wc* datagram) noexcept {
    if (qp_ == nullptr) {
        completion.srq = srq_;
    }
    bool is_message = completion.ok();
    if (flow != nullptr && (flow->watches_receives() || completion.opcode == CompletionOpcode::recv_rdma_with_imm))
        [[unlikely]] {
        is_message = !flow->received(turn, completion, true) && is_message;
    }
    messages_ += completion.ok();
    if (!is_message) [[unlikely]] {
        pool_.return_unused(buffer);
        if (pool_.low()) {
            refill(turn);  // a queue that has ended is not refilled; a shared queue goes on for its other queue pairs
        }
        return;
    }
    pool_.hand_out(turn, buffer, completion, datagram);
    if (pool_.low()) {
        pool_.count_low();
        if (pool_.wants()) {
            refill(turn);
        }
    }
}

[[gnu::noinline]] void RecvQueue::tell(Turn& turn, const Completion& completion, Flow& flow) noexcept {
    if (flow.watches_receives()) {
        // The result does not matter, because the application posted this receive itself.
        (void)flow.received(turn, completion, false);
    }
}

[[gnu::cold]] void RecvQueue::complete_by_runtime(Turn& turn, const InFlightEntry& entry, Status status) noexcept {
    Completion completion;
    completion.status = status;
    completion.flags = kByRuntime;
    deliver(turn, entry, completion, nullptr);
}

void RecvQueue::complete_unposted(Turn& turn) noexcept {
    while (const InFlightEntry* entry = table_.pop_unposted()) {
        if (entry->kind == InFlightEntry::Kind::unposted) {
            complete_by_runtime(turn, *entry, entry->status);
        }
    }
}

void RecvQueue::buffer_released(Turn& turn) noexcept {
    if (ended_ && qp_ != nullptr) {
        qp_->look_again(turn);  // the final completion may have waited for a buffer
    } else {
        refill(turn);
    }
}

// ---- The end ----

[[gnu::cold]] void RecvQueue::tell_end(Turn& turn, QpHandle qp, Status cause) noexcept {
    if (pool_.pool() == nullptr) {
        return;
    }
    Completion completion;
    completion.qp = qp;
    completion.status = cause == Status::success ? Status::wr_flush_err : cause;
    completion.flags = kByRuntime;
    // if it fails, it is tried again after a release of a buffer or a completed receive
    (void)pool_.tell_end(turn, completion);
}

[[gnu::cold]] void RecvQueue::complete_leftovers(Turn& turn, Status status) noexcept {
    table_.take_all([&](const InFlightEntry& entry) {
        if (entry.kind == InFlightEntry::Kind::pooled) {
            pool_.return_unused(static_cast<std::uint32_t>(entry.tag));
        } else if (entry.kind == InFlightEntry::Kind::posted) {
            turn.counters.cut_short.add(qp_ != nullptr);
            complete_by_runtime(turn, entry, status);
        } else if (entry.kind == InFlightEntry::Kind::unposted) {
            complete_by_runtime(turn, entry, entry.status);
        }
    });
}

}  // namespace pollcore
