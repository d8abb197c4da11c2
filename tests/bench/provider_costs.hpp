// The measurements of provider-bench: the cost of an operation including the device's provider (see provider.hpp).
#pragma once

#include <string>
#include <vector>

#include "measurement.hpp"
#include "two_cpus.hpp"

namespace pollcore::bench {

/// Measures on a verbs device, with RDMA writes on queue pairs that are connected to themselves.
[[nodiscard]] std::vector<Measurement> provider_costs(const std::string& device, const Cpus& cpus);
/// Goals that compare the worker's cycles with the model of costs in runtime/COSTS.md.
[[nodiscard]] std::vector<Goal> provider_goals(const std::vector<Measured>& all);

}  // namespace pollcore::bench
