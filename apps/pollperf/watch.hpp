// The deadline of every wait. It costs only a counter in the waiting loop.
//
// Thread safety: used by the measuring thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "workload.hpp"

namespace pollcore::perf {

class Watch {
public:
    /// A spinning loop reads the clock once in this many polls, which is once in a few milliseconds.
    static constexpr std::uint32_t kSpinsPerLook = 1u << 14;
    /// The longest sleep of a sleeping loop between two reads of the clock.
    static constexpr std::chrono::milliseconds kSleepMax{50};

    explicit Watch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

    /// Polls `path` until `done` returns true. If that takes long, path.look_after_peer() checks the peer. After the
    /// timeout, throws MeasurementError with the message that path.stalled() makes.
    template <class Path, class Done>
    [[gnu::always_inline]] void until(Path& path, unsigned end, const char* what, Done&& done) {
        std::uint32_t spins = 0;
        std::uint32_t looks = 0;
        while (!done()) {
            path.poll();
            if (++spins >= path.spins_per_look()) [[unlikely]] {
                spins = 0;
                if (look(looks++)) {
                    check(path, end, what);
                }
            }
        }
    }

    [[nodiscard]] std::chrono::milliseconds timeout() const noexcept { return timeout_; }

private:
    using Clock = std::chrono::steady_clock;
    /// A wait checks the peer once in this time, because the check may cost a system call.
    static constexpr std::chrono::milliseconds kPeerPatience{100};

    /// Returns whether it is time to check the peer. `looks` is the number of earlier calls of look() in this wait.
    [[gnu::cold, gnu::noinline]] bool look(std::uint32_t looks) {
        const auto now = Clock::now();
        if (looks == 0) {
            began_ = now;
            next_ = now + kPeerPatience;
        }
        if (now < next_) {
            return false;
        }
        next_ = now + kPeerPatience;
        return true;
    }

    template <class Path>
    [[gnu::cold, gnu::noinline]] void check(Path& path, unsigned end, const char* what) {
        path.look_after_peer(end, what);
        if (Clock::now() - began_ >= timeout_) {
            throw MeasurementError(path.stalled(end, what, timeout_));
        }
    }

    std::chrono::milliseconds timeout_;
    Clock::time_point began_{};
    Clock::time_point next_{};
};

}  // namespace pollcore::perf
