// The deadline of every wait. It costs only a counter in the waiting loop.
//
// Thread safety: used by one measuring thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

class Watch {
public:
    /// A spinning loop reads the clock once in this many polls, which is once in a few milliseconds.
    static constexpr std::uint32_t kSpinsPerLook = 1u << 14;
    /// The longest sleep of a sleeping loop between two reads of the clock.
    static constexpr std::chrono::milliseconds kSleepMax{50};

    /// `look_about` is called about ten times a second during a long wait. It throws if the measurement has to end, for
    /// example because the peer says so.
    explicit Watch(std::chrono::milliseconds timeout, std::function<void()> look_about = {})
        : timeout_(timeout), look_about_(std::move(look_about)) {}

    /// Polls `path` until `done` returns true. If that takes long, path.look_after_peer() checks the peer. After the
    /// timeout, throws MeasurementError with the message that path.stalled() makes.
    template <class Path, class Done>
    [[gnu::always_inline]] void until(Path& path, unsigned end, const char* what, Done&& done) {
        std::uint32_t spins = 0;
        std::uint32_t looks = 0;
        while (!done()) {
            path.poll(std::chrono::nanoseconds(kSleepMax));
            if (++spins >= path.spins_per_look()) [[unlikely]] {
                spins = 0;
                if (look(looks++)) {
                    check(path, end, what);
                }
            }
        }
    }

    /// For a loop of its own: call moved() after each turn that has done something, and idle() after each other turn.
    void moved() noexcept {
        spins_ = 0;
        looks_ = 0;
    }
    template <class Path>
    void idle(Path& path, unsigned end, const char* what) {
        if (++spins_ >= path.spins_per_look()) [[unlikely]] {
            spins_ = 0;
            if (look(looks_++)) {
                check(path, end, what);
            }
        }
    }
    /// As idle(), for a loop that may rightly have nothing to do for a long time.
    template <class Path>
    void attend(Path& path, unsigned end, const char* what) {
        if (++spins_ >= path.spins_per_look()) [[unlikely]] {
            spins_ = 0;
            if (look(looks_++)) {
                path.look_after_peer(end, what);
                if (look_about_) {
                    look_about_();
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
        if (look_about_) {
            look_about_();
        }
        if (Clock::now() - began_ >= timeout_) {
            throw MeasurementError(path.stalled(end, what, timeout_));
        }
    }

    std::chrono::milliseconds timeout_;
    std::function<void()> look_about_;
    std::uint32_t spins_ = 0;
    std::uint32_t looks_ = 0;
    Clock::time_point began_{};
    Clock::time_point next_{};
};

}  // namespace pollcore::perf
