// The parts of the benchmark. Each returns a list of measurements.
#pragma once

#include <chrono>
#include <vector>

#include "measurement.hpp"
#include "two_cpus.hpp"

namespace pollcore::bench {

struct Setting {
    Cpus cpus;
    std::chrono::milliseconds time{30};  ///< duration of one measurement
};

[[nodiscard]] std::vector<Measurement> ring_streams(const Setting& setting);
[[nodiscard]] std::vector<Measurement> ring_trips(const Setting& setting);
[[nodiscard]] std::vector<Measurement> worker_costs(const Setting& setting);
[[nodiscard]] std::vector<Measurement> hops(const Setting& setting);
[[nodiscard]] std::vector<Measurement> bursts(const Setting& setting);
[[nodiscard]] std::vector<Measurement> singles(const Setting& setting);
[[nodiscard]] std::vector<Measurement> flow_costs(const Setting& setting);
[[nodiscard]] std::vector<Measurement> hostile_costs(const Setting& setting);
[[nodiscard]] std::vector<Measurement> process_costs(const Setting& setting);

}  // namespace pollcore::bench
