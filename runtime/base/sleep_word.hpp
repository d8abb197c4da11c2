// A word for sleeping and waking (D23). A thread sets it when it is about to sleep, and a thread that brings it
// something takes the word back to wake it. The word may lie in memory that two processes share.
//
//   the sleeper                         a thread that brings something
//   expect(); look once more; sleep     publish it; if take(), wake the sleeper
//   rest()
//
// No wake-up is lost (I8): expect() and take() are read-modify-writes of one word, so one of them comes first. If
// take() comes first, the sleeper's look after expect() finds what was published before take(). Otherwise take()
// returns true.
//
// Thread safety: expect() and rest() by the thread that sleeps, take() by any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "pollcore/schedule_point.hpp"

namespace pollcore {

class SleepWord {
public:
    /// From here on a thread that brings something wakes the sleeper.
    void expect() noexcept {
        schedule_point(SchedulePoint::expect);
        (void)asleep_.exchange(1, std::memory_order_seq_cst);
    }
    /// The sleeper is awake. False: another thread wakes it or has done so, and a needless wake-up may still come.
    bool rest() noexcept { return asleep_.exchange(0, std::memory_order_seq_cst) != 0; }
    /// Something was published. True: the caller has to wake the sleeper.
    [[nodiscard]] bool take() noexcept {
        schedule_point(SchedulePoint::wake);
        return asleep_.exchange(0, std::memory_order_seq_cst) != 0;
    }

private:
    std::atomic<std::uint32_t> asleep_{0};
};
static_assert(sizeof(SleepWord) == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace pollcore
