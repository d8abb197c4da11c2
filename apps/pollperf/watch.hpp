// The deadline of every wait. It costs a counter in the waiting loop.
//
// Thread safety: used by the measuring thread alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "workload.hpp"

namespace pollcore::perf {

class Watch {
public:
    /// Empty turns of a spinning loop between two looks at the clock: a few milliseconds.
    static constexpr std::uint32_t kSpinsPerLook = 1u << 14;
    /// The longest turn of a sleeping loop.
    static constexpr std::chrono::milliseconds kSleepMax{50};

    explicit Watch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

    /// Polls `path` until `done` returns true. When that takes too long, `path` checks the peer and makes the error
    /// message.
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
    /// Looking after the peer may cost a system call, so a wait must be this long first.
    static constexpr std::chrono::milliseconds kPeerPatience{100};

    /// True when it is time to look after the peer.
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
