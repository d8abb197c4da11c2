// Wakes the thread of an engine that sleeps on its completion channel. Whoever brings work to the engine rings it.
//
// No wake-up is lost: who brings work publishes it and then looks whether the thread sleeps, the thread says that it
// sleeps and then looks for work, all by sequentially consistent operations, so at least one of them sees the other's
// (I8, H22).
//
// Thread safety: open() before anybody rings, expect(), answer() and rest() by the thread that sleeps, ring() by any.
#pragma once

#include <atomic>

#include "base/event_fd.hpp"

namespace pollcore::soft {

class Doorbell {
public:
    /// From here on it may be rung. Throws Error.
    void open() {
        if (fd_.valid())
            return;
        fd_ = make_event_fd("a completion channel");
        // Relaxed: the caller sees to it that nobody brings work with the old value, see Fabric::settle.
        used_.store(true, std::memory_order_relaxed);
    }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Whether the thread may ever sleep: if not, no order need be kept for it.
    [[nodiscard]] bool used() const noexcept { return used_.load(std::memory_order_relaxed); }

    /// The thread will sleep unless it finds work after this.
    void expect() noexcept { asleep_.store(true, std::memory_order_seq_cst); }
    /// The thread looks for what was brought. Takes back what was rung, also what somebody rang late who had found it
    /// asleep: else fd() stayed readable, and the thread would never sleep again.
    void answer() noexcept {
        asleep_.store(false, std::memory_order_seq_cst);
        (void)drain_event(fd_.get());
    }
    /// The thread is awake, and need not be told of anything. No system call.
    void rest() noexcept { asleep_.store(false, std::memory_order_seq_cst); }
    /// Work was published, by a sequentially consistent store or under the engine's lock.
    void ring() noexcept {
        if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]]
            wake();
    }

private:
    [[gnu::cold, gnu::noinline]] void wake() noexcept {
        if (asleep_.exchange(false, std::memory_order_seq_cst))  // else another has
            signal_event(fd_.get());
    }

    std::atomic<bool> asleep_{false};
    std::atomic<bool> used_{false};
    UniqueFd fd_;
};

}  // namespace pollcore::soft
