// How a service's thread waits for work without burning its core: it spins, then yields, then sleeps a little
// longer each time.
//
// What that means for a peer: while messages follow each other within kSpinFor there is no wait at all;
// within kYieldFor a scheduler's turn on a busy core; the first message after a longer silence waits for up
// to kSleepMax (and the kernel's timer slack, 50 us). A silent service costs about a thousand wake-ups a
// second, one or two percent of a core. Waiting for events instead will make this class superfluous.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace pollcore::daemon {

class IdleLadder {
public:
    using Clock = std::chrono::steady_clock;

    static constexpr std::chrono::microseconds kSpinFor{20};
    static constexpr std::chrono::microseconds kYieldFor{1000};
    static constexpr std::chrono::microseconds kSleepMin{50};
    static constexpr std::chrono::microseconds kSleepMax{1000};
    static_assert(kSpinFor < kYieldFor && kSleepMin < kSleepMax);

    enum class Rung { spin, yield, sleep };
    struct Wait {
        Rung rung = Rung::spin;
        std::chrono::microseconds duration{0};  ///< of a sleep
    };

    /// There was work: back to the lowest rung.
    void worked() noexcept { idle_ = false; }

    /// There was none at `now`: how to wait.
    [[nodiscard]] Wait next(Clock::time_point now) noexcept {
        if (!idle_) {
            idle_ = true;
            idle_since_ = now;
            sleep_ = kSleepMin;
        }
        const auto idle_for = now - idle_since_;
        if (idle_for < kSpinFor) {
            return {Rung::spin, {}};
        }
        if (idle_for < kYieldFor) {
            return {Rung::yield, {}};
        }
        const auto duration = sleep_;
        sleep_ = std::min(sleep_ * 2, kSleepMax);
        return {Rung::sleep, duration};
    }

    /// Waits as next() says.
    void wait() {
        const Wait how = next(Clock::now());
        if (how.rung == Rung::yield) {
            std::this_thread::yield();
        } else if (how.rung == Rung::sleep) {
            std::this_thread::sleep_for(how.duration);
        }
    }

private:
    bool idle_ = false;
    Clock::time_point idle_since_{};
    std::chrono::microseconds sleep_ = kSleepMin;
};

}  // namespace pollcore::daemon
