// Wakes the thread of an engine that sleeps on its completion channel. Whoever brings work to the engine rings it.
//
// No wake-up is lost: who brings work publishes it and then looks whether the thread sleeps, the thread says that it sleeps
// and then looks for work, all by sequentially consistent operations, so at least one of them sees the other's (I8, H22).
//
// Thread safety: open() before anybody rings, expect() and rest() by the thread that sleeps, ring() by any.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"

namespace pollcore::soft {

class Doorbell {
public:
    /// From here on it may be rung. Throws Error.
    void open() {
        if (fd_.valid())
            return;
        fd_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        if (!fd_.valid())
            throw Error(errno, "cannot make an eventfd for a completion channel");
        // Relaxed: the caller sees to it that nobody brings work with the old value, see Fabric::settle.
        used_.store(true, std::memory_order_relaxed);
    }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Whether the thread may ever sleep: if not, no order need be kept for it.
    [[nodiscard]] bool used() const noexcept { return used_.load(std::memory_order_relaxed); }

    /// The thread will sleep unless it finds work after this.
    void expect() noexcept { asleep_.store(true, std::memory_order_seq_cst); }
    /// The thread is awake. Takes back what was rung.
    void rest() noexcept {
        // Where it was still expected nobody has rung; who rings at this moment makes fd() readable for nothing.
        if (!asleep_.exchange(false, std::memory_order_seq_cst)) {
            std::uint64_t rung = 0;
            (void)!::read(fd_.get(), &rung, sizeof(rung));
        }
    }
    /// Work was published, by a sequentially consistent store or under the engine's lock.
    void ring() noexcept {
        if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]]
            wake();
    }

private:
    [[gnu::cold, gnu::noinline]] void wake() noexcept {
        if (!asleep_.exchange(false, std::memory_order_seq_cst))
            return;  // another has
        const std::uint64_t one = 1;
        (void)!::write(fd_.get(), &one, sizeof(one));  // cannot fail: the count is far from its end
    }

    std::atomic<bool> asleep_{false};
    std::atomic<bool> used_{false};
    UniqueFd fd_;
};

}  // namespace pollcore::soft
