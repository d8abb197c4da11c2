// What an operation costs with its provider: the measurements of provider-bench.
#pragma once

#include <string>
#include <vector>

#include "measurement.hpp"
#include "two_cpus.hpp"

namespace pollcore::bench {

/// On a verbs device, with RDMA writes to itself.
[[nodiscard]] std::vector<Measurement> provider_costs(const std::string& device, const Cpus& cpus);
/// Whether the worker takes what the model of costs in runtime/COSTS.md says.
[[nodiscard]] std::vector<Goal> provider_goals(const std::vector<Measured>& all);

}  // namespace pollcore::bench
