// The time stamp of the timed loops.
//
// A plain rdtsc may be read before a load that stands before it in the program has returned, and then shows
// latencies that do not exist. This one waits for all loads before it. What comes after may begin early; as
// each sample ends where the next begins, nothing is lost or counted twice by that, and the samples of a
// round add up to its wall time (which the report checks).
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
