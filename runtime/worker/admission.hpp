// What the two ways of taking a request (submit.cc, fast_path.cc) ask both.
//
// Thread safety: the worker's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/planted.hpp"
#include "worker/worker.hpp"

namespace pollcore {

/// Requests that a queue pair may still have in this step.
[[gnu::always_inline]] inline std::uint32_t Worker::budget_left(WorkerQp& qp) const noexcept {
    if (qp.budget_step != step_) {
        qp.budget_step = step_;
        qp.budget_used = 0;
    }
    return options_.qp_burst - std::min(qp.budget_used, options_.qp_burst);
}

[[gnu::always_inline]] inline bool Worker::over_budget(WorkerQp& qp) noexcept {
    const bool over = budget_left(qp) == 0;
    qp.budget_used += !over;
    return over;
}

// A signal that nobody asked for keeps things moving: before unsignaled work could fill the send queue, and
// on the request that takes the last place this session has, so that a refused session always has a
// completion or a retirement to wait for.
[[gnu::always_inline]] inline bool Worker::must_signal(const WorkerSession& session, const WorkerQp& qp, const Share& share) const noexcept {
    if (planted(Bug::wedged)) {
        return false;
    }
    return qp.unsignaled_run + 1 >= qp.signal_interval || share.sends >= share.send_depth ||
           session.in_flight >= session.completion_slots || session.unsignaled > session.completion_slots / 2;
}

// A process that has had its share of this step waits for the next. What its sessions have in their rings stays there, so
// nothing is kept for it.
[[gnu::always_inline]] inline bool Worker::has_share_left(WorkerSession& session, std::size_t slots_taken) noexcept {
    ClientShare& share = *session.client;
    if (share.step != step_) {
        share.step = step_;
        const std::int64_t quantum = std::int64_t{options_.submit_burst} * ClientShare::kRequest;
        share.left = std::min(share.left + quantum, quantum);
    }
    if (share.left > 0) [[likely]] {
        return true;
    }
    if (const std::uint64_t head = session.submissions.released() + slots_taken + 1; session.throttled_at != head) {
        session.throttled_at = head;
        // Relaxed: a statistic, and nobody else writes it; what a hostile process writes there is its own.
        session.header->throttled.store(++session.throttled, std::memory_order_relaxed);
    }
    return false;
}

}  // namespace pollcore
