// What pollcore wants to reach, as ratios of figures of the same repetition.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "measurement.hpp"

namespace pollcore::bench {

/// Those whose figures were measured.
[[nodiscard]] std::vector<Goal> make_goals(const std::vector<Measurement>& measurements);

/// Limits that were not the same all the time: a virtual machine's CPUs may have been moved.
[[nodiscard]] std::vector<Noise> restlessness(const std::vector<Measurement>& measurements);

}  // namespace pollcore::bench
