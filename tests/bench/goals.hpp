// What worker, hop and flow control are to reach, as ratios of figures of the same repetition.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "measurement.hpp"

namespace pollcore::bench {

/// Those whose figures were measured.
[[nodiscard]] std::vector<Goal> worker_goals(const std::vector<Measured>& all);

}  // namespace pollcore::bench
