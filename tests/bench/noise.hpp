// Whether the machine was quiet enough for what was measured on it to be believed.
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
    /// What others took meanwhile; empty: nothing worth a word.
    [[nodiscard]] std::vector<Noise> complaints() const;

private:
    struct Reading {
        std::chrono::steady_clock::time_point when;
        std::uint64_t steal_ms = 0;
        std::uint64_t waiting_us = 0;  ///< /proc/pressure/cpu: some thread waited for a CPU
    };
    static Reading read();
    Reading began_;
};

/// Limits that were not the same all the time, at one distance: something else moved.
[[nodiscard]] std::vector<Noise> restlessness(const std::vector<Measured>& all);

}  // namespace pollcore::bench
