// Turns a thread's heartbeat into a ThreadHealth, which a program can read (D33).
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/heartbeat.hpp"
#include "pollcore/health.hpp"

namespace pollcore {

/// `now` is the current time in the clock of `heartbeat`. `per_ns` is the number of units of this clock in a
/// nanosecond.
[[nodiscard]] inline ThreadHealth thread_health(std::string name, ThreadHealth::Kind kind, const Heartbeat& heartbeat,
                                                std::uint64_t now, double per_ns = 1) {
    using State = ThreadHealth::State;
    const std::uint64_t since = heartbeat.since();
    ThreadHealth health{
        .name = std::move(name), .kind = kind, .thread_id = heartbeat.thread_id(), .turns = heartbeat.turns()};
    if (since == Heartbeat::kNotRunning) {
        return health;
    }
    if (since == Heartbeat::kForever) {
        health.state = kind == ThreadHealth::Kind::worker ? State::asleep : State::waiting;
    } else if (since > now && kind != ThreadHealth::Kind::worker) {
        health.state = State::waiting;
    } else {
        // `since` may be later than `now`, because a worker may have begun its work after `now` was read.
        const double busy = static_cast<double>(now > since ? now - since : 0) / per_ns;
        health.busy = std::chrono::nanoseconds(static_cast<std::int64_t>(busy));
        health.state = health.busy >= kHangsAfter ? State::hangs : State::working;
    }
    return health;
}

}  // namespace pollcore
