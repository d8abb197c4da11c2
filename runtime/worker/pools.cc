// Receives that the worker posts from receive pools, and buffers that come back.
//
// A taker is filled when it has few receives left, several at once with one doorbell: at the end of a step, so that all that
// was released and received in it counts. Its receives reach their session only with a message in them, but for the one that
// tells the end.
#include <algorithm>

#include "worker/worker.hpp"

namespace pollcore {
namespace {

// Receives that one taker gets in one step (I10).
constexpr std::uint32_t kFillMax = 64;

}  // namespace

[[gnu::noinline]] Worker::Take Worker::take_release(WorkerSession& session, const WorkRequest& line) noexcept {
    const auto request = std::bit_cast<ReleaseRequest>(line);
    WorkerPool* pool = request.pool.index < pools_.size() ? pools_[request.pool.index] : nullptr;
    if (pool == nullptr || pool->handle != request.pool || pool->session != &session) {
        session.count_refused();
        return Take::taken;  // it was closed
    }
    const std::uint32_t count = std::min<std::uint32_t>(request.count, ReleaseRequest::kBuffers);
    if (pool->ring != nullptr) {
        release_records(*pool, std::span(request.buffers).first(count));
        return Take::taken;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t buffer = request.buffers[i];
        if (!pool->buffers.with_application(buffer)) [[unlikely]] {
            pool->counters->bad_releases.add();
            session.count_refused();
            continue;
        }
        PoolTaker* taker = pool->buffers.take_back(buffer);
        pool->counters->released.add();
        pool->counters->held.add(-1);
        if (taker == nullptr) {
            pool->counters->orphaned.add(-1);
            continue;
        }
        --taker->held;
        if (taker->qp != nullptr && taker == &taker->qp->rendezvous) {
            list(*taker->qp);  // something may wait to be read
        } else if (taker->qp != nullptr && taker->qp->state == QpState::error) [[unlikely]] {
            due(*taker->qp);
        } else if (taker->posted <= taker->low_water) {
            list(*taker);
        }
    }
    return Take::taken;
}

void Worker::list(PoolTaker& taker) noexcept {
    if (!taker.listed) {
        taker.listed = true;
        to_fill_.push_back(&taker);
    }
}

[[gnu::noinline]] std::uint32_t Worker::fill_pools() noexcept {
    std::uint32_t posted = 0;
    for (std::size_t i = 0; i < to_fill_.size();) {
        PoolTaker& taker = *to_fill_[i];
        const bool parked = taker.qp != nullptr && taker.qp->parked != 0;
        const std::uint32_t n = parked ? 0 : post_receives(taker);
        posted += n;
        if (parked || n == kFillMax) {
            ++i;  // more in the next step
        } else {
            taker.listed = false;
            to_fill_[i] = to_fill_.back();
            to_fill_.pop_back();
        }
    }
    if (posted != 0) {
        ring_doorbells();
    }
    return posted;
}

std::uint32_t Worker::post_receives(PoolTaker& taker) noexcept {
    WorkerPool& pool = *taker.pool;
    const bool over = taker.qp != nullptr ? taker.qp->state == QpState::error : taker.srq->closing;
    if (over || pool.session->broken()) {
        return 0;
    }
    // Of entries that never completed there may be more than are posted.
    const std::uint32_t room = taker.qp != nullptr ? taker.qp->recvs.room() : taker.srq->receives.room();
    const std::uint32_t n = std::min({taker.wanted(), pool.buffers.free(), room, kFillMax});
    for (std::uint32_t i = 0; i < n; ++i) {
        if (!chain_room(1, 0)) {
            ring_doorbells();
        }
        const std::uint32_t buffer = pool.buffers.take();
        const InFlightEntry entry{.tag = pool_tag(pool.handle, buffer),
                                  .session = pool.session,
                                  .lkey = pool.lkey,
                                  .opcode = taker.qp != nullptr ? Opcode::recv : Opcode::srq_recv,
                                  .flags = kSignaled,
                                  .num_sge = 1,
                                  .kind = InFlightEntry::Kind::pooled};
        ibv_sge& sge = sges_[sges_used_++];
        sge = {.addr = pool.addr + std::uint64_t{buffer} * pool.stride, .length = pool.buffer_bytes, .lkey = pool.lkey};
        ibv_recv_wr& wr = recv_wrs_[recv_wrs_used_++];
        wr.next = nullptr;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        if (taker.qp != nullptr) {
            wr.wr_id = WrId{taker.qp->handle, true, taker.qp->recvs.next_position()}.pack();
            taker.qp->recvs.push() = entry;
            chain(*taker.qp, wr);
        } else {
            const std::uint32_t slot = taker.srq->receives.take();
            taker.srq->receives.at(slot) = entry;
            wr.wr_id = SrqWrId{taker.srq->handle, slot}.pack();
            chain(*taker.srq, wr);
        }
    }
    taker.posted += n;
    pool.session->take_pooled(n);
    pool.counters->posted.add(n);
    turn_.counters.receives.add(n);
    if (n != 0) {
        pool.counters->refills.add();
        if (taker.qp != nullptr && taker.qp->flow != nullptr) {
            count_posted(*taker.qp, n);
        }
    }
    return n;
}

// A receive of the taker's is over.
void Worker::came_back(PoolTaker& taker) noexcept {
    --taker.posted;
    taker.pool->session->end_pooled();
    taker.pool->counters->posted.add(-1);
}

/// A receive that the provider has completed: its entry is out of its table. `qp` took it; null where no one knows.
void Worker::complete_pooled(WorkerQp* qp, PoolTaker& taker, std::uint64_t tag, Completion& completion, const ibv_wc* datagram) noexcept {
    const auto buffer = static_cast<std::uint32_t>(tag);
    came_back(taker);
    bool empty = !completion.ok();
    if (!empty && qp != nullptr && qp->flow != nullptr) {
        empty = completion.opcode == CompletionOpcode::recv_rdma_with_imm && take_announcement(*qp, completion);
        qp->flow->used += qp->srq == nullptr;
    }
    if (empty) [[unlikely]] {
        taker.pool->buffers.put_back(buffer);
        if ((taker.srq != nullptr || completion.ok()) && taker.posted <= taker.low_water) {
            list(taker);  // it goes on, or its other queue pairs do
        }
        return;
    }
    hand_out(taker, buffer, completion, datagram);
    if (taker.posted <= taker.low_water) {
        taker.pool->counters->low_water.add(taker.posted == taker.low_water);
        taker.pool->counters->ran_dry.add(taker.posted == 0);
        if (taker.wanted() != 0) {
            list(taker);
        }
    }
}

/// A receive that no message will take.
void Worker::return_unused(PoolTaker& taker, const InFlightEntry& entry) noexcept {
    came_back(taker);
    taker.pool->buffers.put_back(static_cast<std::uint32_t>(entry.tag));
}

/// One that the provider did not take. Where there is another, it is tried again when that one is taken; else in the next step.
[[gnu::cold]] void Worker::return_refused(PoolTaker& taker, const InFlightEntry& entry) noexcept {
    return_unused(taker, entry);
    if (taker.posted == 0) {
        list(taker);
    }
}

// Once all receives of a queue pair in error are back, one completion says that no more come.
[[gnu::cold]] void Worker::tell_end(WorkerQp& qp) noexcept {
    PoolTaker& taker = qp.pool;
    if (taker.pool == nullptr || taker.told || qp.state != QpState::error || taker.posted != 0 || taker.wanted() == 0 ||
        taker.pool->buffers.free() == 0 || (qp.flow != nullptr && qp.flow->receiving.state == AnnouncedRecv::State::reading)) {
        return;  // again when a buffer is released, or the message was read that came last
    }
    taker.told = true;
    Completion completion;
    completion.qp = qp.handle;
    completion.status = qp.cause == Status::success ? Status::wr_flush_err : qp.cause;
    completion.flags = kByRuntime;
    hand_out(taker, taker.pool->buffers.take(), completion, nullptr);
    taker.pool->counters->delivered.add(-1);  // it is no message
}

// The taker ends, and is in no table any more.
void Worker::dismiss(PoolTaker& taker) noexcept {
    if (taker.pool == nullptr) {
        return;
    }
    if (taker.held != 0) {
        taker.pool->buffers.forget(taker);
        taker.pool->counters->orphaned.add(taker.held);
    }
    --takers_;
    if (taker.listed) {
        std::erase(to_fill_, &taker);
        taker.listed = false;
    }
}

}  // namespace pollcore
