// The lock of an engine or of a memory window. Taking the lock while it is free costs one exchange.
//
// An engine is meant for one thread, so its lock is nearly always free. The lock exists because the verbs are
// thread-safe, and because the control side changes objects that the data path uses (D44). A waiting thread spins
// briefly. Then it yields the core, because the holder of the lock may need this core.
//
// Thread safety: like a mutex, and not recursive. Works with std::lock_guard.
#pragma once

#include <sched.h>

#include <atomic>

namespace pollcore::soft {

class SpinLock {
public:
    void lock() noexcept {
        // Acquire: pairs with the release in unlock().
        if (!held_.exchange(true, std::memory_order_acquire)) [[likely]]
            return;
        lock_slow();
    }
    void unlock() noexcept { held_.store(false, std::memory_order_release); }

private:
    static constexpr int kSpinsMax = 200;

    [[gnu::cold, gnu::noinline]] void lock_slow() noexcept {
        for (int spins = 0;; ++spins) {
            // Relaxed: the load is only a hint when to try; the exchange takes the lock.
            if (!held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire))
                return;
            if (spins < kSpinsMax) {
                __builtin_ia32_pause();
            } else {
                sched_yield();
            }
        }
    }

    std::atomic<bool> held_{false};
};

}  // namespace pollcore::soft
