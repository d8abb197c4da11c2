// The time stamp of the timed loops.
//
// A plain rdtsc may run before an earlier load of the program has returned. It then shows latencies that do not exist.
// On x86-64 this stamp waits for all earlier loads. Later instructions may begin before the stamp is taken. All the
// same, no time is lost or counted twice, because each sample ends where the next sample begins. Without --verify, the
// samples of a round therefore add up to its wall time, and the report checks this.
//
// Thread safety: pure.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace pollcore::perf {

[[nodiscard]] inline std::uint64_t stamp() noexcept {
#if defined(__x86_64__)
    unsigned processor = 0;
    return __rdtscp(&processor);
#else
#if defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
    return cycles_now();
#endif
}

}  // namespace pollcore::perf
