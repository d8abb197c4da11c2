// Who sleeps and who wakes: a word that one thread sets when it is about to sleep, and that whoever brings it something
// takes back to wake it. It may lie in memory that two processes share.
//
//   the sleeper                         whoever brings something
//   expect(); look once more; sleep     publish it; if take(), wake the sleeper
//   rest()
//
// No wake-up is lost (I8): expect() and take() are read-modify-writes of one word, so one of them comes first. If it is
// take(), then expect() has seen what was published before, and the look that follows it finds it; else take() returns
// true.
//
// Thread safety: expect() and rest() by the one who sleeps, take() by any.
#pragma once

#include <atomic>
#include <cstdint>

#include "pollcore/schedule_point.hpp"

namespace pollcore {

class SleepWord {
public:
    /// From here on who brings something wakes the sleeper.
    void expect() noexcept {
        schedule_point(SchedulePoint::expect);
        (void)asleep_.exchange(1, std::memory_order_seq_cst);
    }
    /// The sleeper is awake. False when somebody wakes it, or has: a wake-up may still come, for nothing.
    bool rest() noexcept { return asleep_.exchange(0, std::memory_order_seq_cst) != 0; }
    /// Something was published. True for the one who has to wake the sleeper.
    [[nodiscard]] bool take() noexcept {
        schedule_point(SchedulePoint::wake);
        return asleep_.exchange(0, std::memory_order_seq_cst) != 0;
    }

private:
    std::atomic<std::uint32_t> asleep_{0};
};
static_assert(sizeof(SleepWord) == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace pollcore
