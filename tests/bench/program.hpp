// A program that measures, prints tables, and writes tables and goals as JSON.
//
// Thread safety: one thread.
#pragma once

#include <span>
#include <vector>

#include "bench.hpp"
#include "measurement.hpp"

namespace pollcore::bench {

struct Part {
    const char* name;  ///< the name that --only takes
    std::vector<Measurement> (*make)(const Setting&);
};

struct Program {
    const char* name;
    const char* about;
    std::span<const Part> parts;
    std::vector<Goal> (*goals)(const std::vector<Measured>&);
};

/// The body of main(). Returns the exit code.
[[nodiscard]] int run(const Program& program, int argc, char** argv);

}  // namespace pollcore::bench
