// The tables of the benchmark, for people (Markdown) and for programs (JSON).
//
// Thread safety: pure functions.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "measurement.hpp"

namespace pollcore::bench {

/// Prints each value as the median of its repetitions, with the smallest and the largest.
void print_tables(std::ostream& out, const std::vector<Measured>& measurements);

void write_json(const std::string& path, const std::vector<Measured>& measurements, const std::vector<Goal>& goals,
                const std::vector<Noise>& noise);

}  // namespace pollcore::bench
