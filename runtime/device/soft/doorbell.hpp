// Wakes the thread of an engine that sleeps on its completion channel. A thread that brings work to the engine rings
// it.
//
// No wake-up is lost: a thread that brings work publishes the work and then looks whether the other thread sleeps. The
// sleeping thread says that it sleeps and then looks for work. All these operations are sequentially consistent, so at
// least one of the two threads sees what the other did (I8, H22).
//
// Thread safety: open() before anybody rings; expect(), answer() and rest() by the thread that sleeps; ring() by any.
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
        // Relaxed: the caller makes sure that nobody brings work with the old value; see Fabric::settle.
        used_.store(true, std::memory_order_relaxed);
    }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Whether the thread may ever sleep. If not, no memory order is needed for it.
    [[nodiscard]] bool used() const noexcept { return used_.load(std::memory_order_relaxed); }

    /// The thread will sleep unless it finds work after this.
    void expect() noexcept { asleep_.store(true, std::memory_order_seq_cst); }
    /// The thread looks for the work. Empties fd(), even if a ring comes late from a thread that had found this one
    /// asleep: else fd() would stay readable, and the thread would never sleep again.
    void answer() noexcept {
        asleep_.store(false, std::memory_order_seq_cst);
        (void)drain_event(fd_.get());
    }
    /// The thread is awake, and need not be told of work. No system call.
    void rest() noexcept { asleep_.store(false, std::memory_order_seq_cst); }
    /// Work was published, by a sequentially consistent store or under the engine's lock.
    void ring() noexcept {
        if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]]
            wake();
    }

private:
    [[gnu::cold, gnu::noinline]] void wake() noexcept {
        if (asleep_.exchange(false, std::memory_order_seq_cst))  // else another thread has woken it
            signal_event(fd_.get());
    }

    std::atomic<bool> asleep_{false};
    std::atomic<bool> used_{false};
    UniqueFd fd_;
};

}  // namespace pollcore::soft
