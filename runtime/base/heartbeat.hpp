// A thread writes down when it began its current work, or until when it waits, so that another thread can see whether
// it hangs (D33).
//
// Times are of the thread's own clock: cycles for a worker, nanoseconds of the steady clock for the others.
//
// Thread safety: as each section says.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <limits>

#include "pollcore/counter.hpp"

namespace pollcore {

[[nodiscard]] inline std::uint64_t steady_ns(std::chrono::steady_clock::time_point time) noexcept {
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(time.time_since_epoch()).count());
}

class Heartbeat {
public:
    static constexpr std::uint64_t kNotRunning = 0;
    static constexpr std::uint64_t kForever = std::numeric_limits<std::uint64_t>::max();

    // ---- The thread itself. If several threads write, they hold one mutex. ----

    /// The thread runs; `thread_id` is the kernel's.
    void start(pid_t thread_id, std::uint64_t now) noexcept {
        thread_id_.set(static_cast<std::uint64_t>(thread_id));
        begin(now);
    }
    /// The thread begins work, or goes on to the next piece of it.
    void begin(std::uint64_t now) noexcept { since_.set(now); }
    /// The thread waits, and has to move again by `until`.
    void wait(std::uint64_t until = kForever) noexcept {
        since_.set(until);
        turns_.add();
    }
    /// The thread ends.
    void stop() noexcept { since_.set(kNotRunning); }

    // ---- Any thread. Each value is a statistic: what is read may be a moment old. ----

    /// Since when the thread has owed a movement; in the future while it waits.
    [[nodiscard]] std::uint64_t since() const noexcept { return since_.value(); }
    [[nodiscard]] std::uint64_t turns() const noexcept { return turns_.value(); }
    [[nodiscard]] pid_t thread_id() const noexcept { return static_cast<pid_t>(thread_id_.value()); }

private:
    Counter since_;
    Counter turns_;
    Counter thread_id_;
};

}  // namespace pollcore
