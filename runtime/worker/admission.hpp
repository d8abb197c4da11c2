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
    if (qp.budget_step != turn_.number()) {
        qp.budget_step = turn_.number();
        qp.budget_used = 0;
    }
    return turn_.options.qp_burst - std::min(qp.budget_used, turn_.options.qp_burst);
}

[[gnu::always_inline]] inline bool Worker::over_budget(WorkerQp& qp) noexcept {
    const bool over = budget_left(qp) == 0;
    qp.budget_used += !over;
    return over;
}

// A signal that nobody asked for keeps things moving, before unsignaled work could fill the send queue.
[[gnu::always_inline]] inline bool Worker::must_signal(const WorkerSession& session, const WorkerQp& qp, const Share& share) const noexcept {
    if (planted(Bug::wedged)) {
        return false;
    }
    return qp.unsignaled_run + 1 >= qp.signal_interval || session.must_signal(share);
}

}  // namespace pollcore
