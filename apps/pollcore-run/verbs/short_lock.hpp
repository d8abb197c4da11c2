// A lock for short work, mostly of less than a microsecond. It is taken and released without a system call, unless its
// holder lost its CPU.
#pragma once

#include <sched.h>

#include <atomic>

namespace pollcore::served {

class ShortLock {
public:
    void lock() noexcept {
        for (unsigned tries = 0; held_.exchange(true, std::memory_order_acquire); ++tries) {
            // Reads only, so that waiting does not take the line from the holder.
            for (unsigned looks = 0; held_.load(std::memory_order_relaxed); ++looks) {
                if (looks >= kLooks) {
                    (void)::sched_yield();
                    break;
                }
#if defined(__x86_64__)
                __builtin_ia32_pause();
#endif
            }
        }
    }
    [[nodiscard]] bool try_lock() noexcept {
        return !held_.exchange(true, std::memory_order_acquire);
    }
    void unlock() noexcept {
        held_.store(false, std::memory_order_release);
    }

private:
    static constexpr unsigned kLooks = 1000;
    std::atomic<bool> held_{false};
};

}  // namespace pollcore::served
