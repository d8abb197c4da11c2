// How a thread looks at a line that another CPU is to write.
//
// A look fetches the line from the CPU that is to write it, which then has to fetch it back before it can. So a look
// that comes too early makes what it waits for come later, by one or two transfers: between CPUs that share no cache
// that is most of a round trip. Looks close to each other cost more still, since a core begins the next one before it
// has seen what the last one brought, and starts again when that was news. runtime/DECISIONS.md, D16, has the measurements.
//
// Thread safety: pure.
#pragma once

#include <atomic>
#include <cstdint>

namespace pollcore {

/// What this thread has stored can be seen elsewhere when this returns, and no look behind it has begun.
// By mfence: behind the locked instruction that a compiler makes of a fence, loads begin early, and a hop between far
// CPUs takes 380 ns, not 290.
[[gnu::always_inline]] inline void settle_stores() noexcept {
#if defined(__x86_64__)
    asm volatile("mfence" : : : "memory");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// So many cycles of this core, at least one, by additions that wait for each other. No load behind it begins before it
/// is over, and none before it is left unfinished. A `pause` takes 40 to 140 cycles, by the CPU.
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

/// What one look and the next are to have between them.
inline constexpr std::uint32_t kBetweenLooks = 20;

}  // namespace pollcore
