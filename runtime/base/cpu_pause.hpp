// Tells the CPU that this thread spins.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pollcore {

inline void cpu_pause() noexcept {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace pollcore
