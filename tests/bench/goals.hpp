// Goals for worker, hop and flow control, as ratios of figures of the same repetition.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "measurement.hpp"

namespace pollcore::bench {

/// The goals whose figures were measured.
[[nodiscard]] std::vector<Goal> worker_goals(const std::vector<Measured>& all);

}  // namespace pollcore::bench
