// Ways for a thread to look at a cache line that another CPU is about to write.
//
// A look is a load of the line. The load takes the line away from the CPU that is about to write it. That CPU has to
// fetch the line back before it can write. So a look that comes too early delays the write that it waits for, by one or
// two transfers of the line (D16). Looks in quick succession cost more still. A core begins the next look before it has
// the result of the last one. If the last look found a new value, the core has to do the next look again.
//
// Thread safety: pure.
#pragma once

#include <atomic>
#include <cstdint>

namespace pollcore {

/// When this returns, other CPUs can see all stores of this thread, and no later look has begun.
// Uses mfence, because compilers turn a fence into a locked instruction, after which loads begin early. With a locked
// instruction, a hop (the way of a request from one CPU to another) takes 380 ns between far CPUs, not 290 (D16).
[[gnu::always_inline]] inline void settle_stores() noexcept {
#if defined(__x86_64__)
    asm volatile("mfence" : : : "memory");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Waits `cycles` cycles of this core, in a loop of subtractions that depend on each other. `cycles` must not be 0.
/// Every earlier load is finished before the wait, and no later load begins before this returns. For comparison: a
/// `pause` instruction takes 40 to 140 cycles, depending on the CPU.
[[gnu::always_inline]] inline void delay_look(std::uint32_t cycles) noexcept {
#if defined(__x86_64__)
    std::uint64_t left = cycles;
    asm volatile("lfence\n1:\tdec %0\n\tjnz 1b\n\tlfence" : "+r"(left) : : "cc", "memory");
#elif defined(__aarch64__)
    std::uint64_t left = cycles;
    asm volatile("isb\n1:\tsubs %0, %0, #1\n\tb.ne 1b\n\tisb" : "+r"(left) : : "cc", "memory");
#else
    for (std::uint32_t i = 0; i < cycles; ++i) {
        asm volatile("");
    }
#endif
}

/// Cycles between one look and the next.
inline constexpr std::uint32_t kBetweenLooks = 20;

}  // namespace pollcore
