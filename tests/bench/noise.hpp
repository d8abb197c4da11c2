// Checks whether the machine was quiet enough for the figures to be believed.
//
// Thread safety: one thread; restlessness() is a pure function.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "measurement.hpp"

namespace pollcore::bench {

class NoiseWatch {
public:
    NoiseWatch();
    /// Reports the time that the hypervisor gave to others, and the time that threads waited for a CPU, since this
    /// object was made. Leaves out a time that is too short to matter.
    [[nodiscard]] std::vector<Noise> complaints() const;

private:
    struct Reading {
        std::chrono::steady_clock::time_point when;
        std::uint64_t steal_ms = 0;
        std::uint64_t waiting_us = 0;  ///< /proc/pressure/cpu: time during which some thread waited for a CPU
    };
    static Reading read();
    Reading began_;
};

/// Reports the rows whose name begins with "limit" and whose figures varied too much at one distance. If a limit
/// varies, something on the machine has changed.
[[nodiscard]] std::vector<Noise> restlessness(const std::vector<Measured>& all);

}  // namespace pollcore::bench
