// Goals for worker, hop and flow control. A goal bounds a figure, or the ratio of two figures of the same repetition.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "measurement.hpp"

namespace pollcore::bench {

/// Leaves out goals whose figures were not measured.
[[nodiscard]] std::vector<Goal> worker_goals(const std::vector<Measured>& all);

}  // namespace pollcore::bench
