// A word for sleeping and waking (D23). A thread that is about to sleep sets the word. A thread that publishes
// something for the sleeper clears the word. If the word was set, the publishing thread wakes the sleeper. The word may
// be in memory that two processes share.
//
//   the sleeper                         a thread that publishes something
//   expect(); look once more; sleep     publish it; if take(), wake the sleeper
//   rest()
//
// No wake-up is lost (I8): expect() and take() are read-modify-writes of one word, so one of them comes first. If
// take() comes first, the sleeper's look after expect() finds the data that was published before take(). If expect()
// comes first, take() returns true.
//
// Thread safety: the thread that sleeps calls expect() and rest(). Any thread calls take().
#pragma once

#include <atomic>
#include <cstdint>

#include "pollcore/schedule_point.hpp"

namespace pollcore {

class SleepWord {
public:
    /// Call this before the last look. From now on, a thread that publishes something wakes the sleeper.
    void expect() noexcept {
        schedule_point(SchedulePoint::expect);
        (void)asleep_.exchange(1, std::memory_order_seq_cst);
    }
    /// Call this when the sleeper is awake. Returns false if another thread has called take() since expect(), so that a
    /// needless wake-up may follow.
    bool rest() noexcept { return asleep_.exchange(0, std::memory_order_seq_cst) != 0; }
    /// Call this after publishing something. Returns true if the caller has to wake the sleeper.
    [[nodiscard]] bool take() noexcept {
        schedule_point(SchedulePoint::wake);
        return asleep_.exchange(0, std::memory_order_seq_cst) != 0;
    }

private:
    std::atomic<std::uint32_t> asleep_{0};
};
static_assert(sizeof(SleepWord) == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace pollcore
