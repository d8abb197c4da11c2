// The time stamp of the timed loops.
//
// A plain rdtsc may run before an earlier load of the program has returned. It then shows latencies that do not exist.
// This stamp waits for all loads before it. Later instructions may begin early, but since each sample ends where the
// next begins, no time is lost or counted twice. The samples of a round add up to its wall time (which the report
// checks).
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
