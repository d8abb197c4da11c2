// A heartbeat (D33): a thread writes down when it began its current work, or until when it waits. Another thread reads
// this, and sees whether the first thread hangs.
//
// Times are in the clock of the thread that writes them: cycles for a worker, nanoseconds of the steady clock for any
// other thread.
//
// Thread safety: see each section.
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

    // ---- For the thread that is watched. Several threads that write one heartbeat do so under one mutex. ----

    /// The thread begins to run. `thread_id` is the kernel's number for the thread.
    void start(pid_t thread_id, std::uint64_t now) noexcept {
        thread_id_.set(static_cast<std::uint64_t>(thread_id));
        begin(now);
    }
    /// The thread begins a piece of work.
    void begin(std::uint64_t now) noexcept { since_.set(now); }
    /// The thread begins to wait, until `until` at the latest.
    void wait(std::uint64_t until = kForever) noexcept {
        since_.set(until);
        turns_.add();
    }
    /// The thread ends.
    void stop() noexcept { since_.set(kNotRunning); }

    // ---- For any thread. Each value may be a moment old. ----

    /// The time at which the thread began its current work. While the thread waits, the time until which it waits,
    /// which lies in the future.
    [[nodiscard]] std::uint64_t since() const noexcept { return since_.value(); }
    [[nodiscard]] std::uint64_t turns() const noexcept { return turns_.value(); }
    [[nodiscard]] pid_t thread_id() const noexcept { return static_cast<pid_t>(thread_id_.value()); }

private:
    Counter since_;
    Counter turns_;
    Counter thread_id_;
};

}  // namespace pollcore
