// The limit that no ring can beat: how long a word takes to another core and back.
//
// Two threads, two words on two cache lines. Each thread writes its own word and watches the other's.
//
// Thread safety: runs a thread of its own and waits for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace pollcore::perf {

struct RoundTrip {
    double typical_ns = 0;
    double p99_ns = 0;
    std::uint32_t core = 0;  ///< the measuring thread's CPU
    std::uint32_t other = 0;
};

/// Round trips before and after the paths were measured: a virtual machine's CPUs may move to other cores meanwhile.
struct RoundTrips {
    RoundTrip before;
    RoundTrip after;

    [[nodiscard]] double typical_ns() const noexcept { return (before.typical_ns + after.typical_ns) / 2; }
};

/// Nothing else may spin on either CPU meanwhile, so no worker may run there. Takes as many round trips as come within
/// `time`. Returns nothing when they are too few to tell anything, because others keep a CPU busy.
[[nodiscard]] std::optional<RoundTrip> measure_round_trip(std::uint32_t core, std::uint32_t other,
                                                          std::chrono::milliseconds time);

}  // namespace pollcore::perf
