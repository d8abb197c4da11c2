// Reads this host: asks what the kernel tells by calls, reads twice what it counts, and measures the cores meanwhile.
//
// Thread safety: one thread. Starts threads that spin on the measured cores, and waits for their end.
#pragma once

#include <chrono>

#include "pollcore/config.hpp"
#include "tree.hpp"

namespace pollcore::doctor {

struct SampleOptions {
    /// Measures also cores that running workers use. Each of them then stands still for half of `time`, or longer.
    bool disturb = false;
    std::chrono::nanoseconds time{std::chrono::seconds(1)};  ///< between the two readings
};

/// `now` and `later` are trees of this host. Afterwards `later` has the second reading, and `now` has all of the rest.
/// Without a configuration the cores are measured one after the other, and only for a short time, because other
/// programs use them.
void sample_host(Tree& now, Tree& later, const Config* config, const SampleOptions& options);

}  // namespace pollcore::doctor
