// Wakes the thread of an engine while the thread sleeps on its completion channel. Another thread that brings work to
// the engine rings this doorbell, which is not the doorbell of an HCA.
//
// No wake-up is lost. The bringer of work publishes the work, and then looks whether the engine's thread sleeps. The
// engine's thread announces that it sleeps, and then looks for work. All four operations are sequentially consistent,
// so at least one of the two threads sees what the other did (I8, H22).
//
// Thread safety: open() is called before the engine's thread sleeps. The thread that sleeps calls expect(), answer()
// and rest(). Any thread may call ring().
#pragma once

#include <atomic>

#include "base/event_fd.hpp"

namespace pollcore::soft {

class Doorbell {
public:
    /// Called before the engine's thread may sleep. Throws Error.
    void open() {
        if (fd_.valid())
            return;
        fd_ = make_event_fd("a completion channel");
        // Relaxed: the caller makes sure that no thread goes on with the old value; see Fabric::settle.
        used_.store(true, std::memory_order_relaxed);
    }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Whether the engine's thread may ever sleep. If not, work may be published without regard to a sleeper.
    [[nodiscard]] bool used() const noexcept { return used_.load(std::memory_order_relaxed); }

    /// The calling thread announces that it will sleep unless it finds work after this call.
    void expect() noexcept { asleep_.store(true, std::memory_order_seq_cst); }
    /// The calling thread is awake and looks for work. Empties fd(), because a thread that saw this one asleep may have
    /// rung late. If fd() stayed readable, the calling thread could never sleep again.
    void answer() noexcept {
        asleep_.store(false, std::memory_order_seq_cst);
        (void)drain_event(fd_.get());
    }
    /// The calling thread is awake, so nobody need ring. Makes no system call.
    void rest() noexcept { asleep_.store(false, std::memory_order_seq_cst); }
    /// Called after work was published by a sequentially consistent store, or under the engine's lock.
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
