// The limit that no ring can beat: the time that a word takes to another core and back.
//
// There are two threads, and two words on two cache lines. Each thread writes its own word and watches the word of the
// other thread.
//
// Thread safety: measure_round_trip() starts the second thread and waits for its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace pollcore::perf {

struct RoundTrip {
    double typical_ns = 0;
    double p99_ns = 0;
    std::uint32_t core = 0;   ///< the measuring thread's CPU
    std::uint32_t other = 0;  ///< the other thread's CPU
};

/// The round trips before and after the measurement of the paths. They may differ, because the CPUs of a virtual
/// machine may move to other cores during the measurement.
struct RoundTrips {
    RoundTrip before;
    RoundTrip after;

    [[nodiscard]] double typical_ns() const noexcept { return (before.typical_ns + after.typical_ns) / 2; }
};

/// Measures round trips between the CPUs `core` and `other` for at most `time`. Nothing else may spin on either CPU
/// during the measurement, so no worker may run there. Returns nullopt if other threads kept a CPU so busy that there
/// were too few round trips.
[[nodiscard]] std::optional<RoundTrip> measure_round_trip(std::uint32_t core, std::uint32_t other,
                                                          std::chrono::milliseconds time);

}  // namespace pollcore::perf
