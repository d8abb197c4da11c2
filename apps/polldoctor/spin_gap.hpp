// How long a thread that spins on a core is kept from it.
//
// Thread safety: each call runs in one thread, which is pinned for its time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace pollcore::doctor {

/// Pins the calling thread to the core, reads the cycle counter again and again for `time`, and counts the pauses above
/// 1 us. A pause is whatever kept the thread from its core: an interrupt, another thread, the hypervisor, or the
/// firmware. Returns lines for spin_file(): "spun_ns", "longest_ns", "lost_ns" (all pauses together), "gaps" (how
/// many), "involuntary" (how often the kernel gave the core to another thread, getrusage(2)); or "not_measured WHY".
[[nodiscard]] std::string spin_on(std::uint32_t core, std::chrono::nanoseconds time);

}  // namespace pollcore::doctor
