// Converts cycles into nanoseconds: the histograms of latency.hpp, and the counters of WorkerCounters that are in
// cycles.
//
//     #include <pollcore/cycles.hpp>
//     #include <pollcore/session.hpp>
//
//     // The time in the submission ring that 99 of 100 requests do not exceed.
//     std::chrono::nanoseconds in_ring(const pollcore::Session& session) {
//         return pollcore::nanoseconds_from(session.stage_latency().submission_ring.percentile(0.99));
//     }
//
// The clock is the time stamp counter on x86, and the virtual counter CNTVCT_EL0 on aarch64. It runs at one rate on all
// CPUs, whatever their frequency (on x86 with constant_tsc, see /proc/cpuinfo). So the conversion is valid for cycles
// that any thread or any process of this machine has counted, such as those that an Attachment gets from its daemon. It
// is not valid on another machine, nor in a virtual machine that has moved to another host since the first call. The
// device's time stamps (CompletionExtension::device_time) have another clock: see DeviceReport.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "pollcore/export.h"

namespace pollcore {

/// The rate of the clock. The first call in a process takes about 20 ms, because it measures the rate against
/// std::chrono::steady_clock. A Runtime does this when it starts. The measurements of several processes on one machine
/// differed by up to 25 parts in a million.
[[nodiscard]] POLLCORE_API double cycles_per_ns() noexcept;

/// The duration of `cycles`, rounded down: 7 cycles at 2.5 GHz are 2 ns. The largest duration is nanoseconds::max().
[[nodiscard]] POLLCORE_API std::chrono::nanoseconds nanoseconds_from(std::uint64_t cycles) noexcept;

}  // namespace pollcore
