// The cycle counter, which is the clock of a worker's steps.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "pollcore/cycles.hpp"

namespace pollcore {

/// The value of a counter that runs at a constant rate on all cores. The CPU may read the counter earlier or later than
/// the neighbouring instructions. So use it for deadlines and sampled durations, not for timing single loads.
[[nodiscard]] inline std::uint64_t cycles_now() noexcept {
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    std::uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

[[nodiscard]] inline std::uint64_t cycles_from(std::chrono::nanoseconds duration) {
    return static_cast<std::uint64_t>(static_cast<double>(duration.count()) * cycles_per_ns());
}

}  // namespace pollcore
