// Goals for the ring, as ratios of figures of the same repetition.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "measurement.hpp"

namespace pollcore::bench {

/// Leaves out goals whose figures were not measured.
[[nodiscard]] std::vector<Goal> ring_goals(const std::vector<Measured>& all);

}  // namespace pollcore::bench
