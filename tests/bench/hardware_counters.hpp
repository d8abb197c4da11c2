// Instructions and cache misses of the calling thread, if this machine lets a program count them.
//
// Thread safety: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace pollcore::bench {

class HardwareCounters {
public:
    struct Reading {
        double instructions = 0;
        double cache_misses = 0;  ///< of the last level (PERF_COUNT_HW_CACHE_MISSES, perf_event_open(2))
    };

    HardwareCounters();
    /// Often false in a virtual machine.
    [[nodiscard]] bool available() const noexcept { return why_not_.empty(); }
    [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }
    /// Returns the events in user mode since the counters were opened.
    [[nodiscard]] Reading read() const;

private:
    std::array<UniqueFd, 2> counters_;
    std::string why_not_;
};

}  // namespace pollcore::bench
