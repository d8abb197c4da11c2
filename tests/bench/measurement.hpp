// What is measured, and how often. The measurements are repeated in turn, so that compared figures are from the same
// moments.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distance.hpp"

namespace pollcore::bench {

/// One value for each repetition; NaN where a repetition has none.
using Samples = std::vector<double>;

/// The samples that are not NaN.
[[nodiscard]] Samples present(const Samples& samples);
/// The mean of the middle two for an even number of samples; NaN for none. Sorts a copy.
[[nodiscard]] double median(const Samples& samples);

/// A row of a table.
struct Measurement {
    std::string table;
    std::string row;
    std::vector<std::string> columns;
    /// One repetition: a value for each column.
    std::function<std::vector<double>()> once;
    /// The figures depend on how far two CPUs are from each other. A repetition during which the CPUs were moved is
    /// thrown away.
    bool between_cpus = false;
};

/// The results of a measurement; at one distance if it depends on the distance.
struct Measured {
    std::string table;
    std::string row;
    std::vector<std::string> columns;
    std::optional<Distance> distance;
    std::vector<Samples> samples;  ///< by column

    [[nodiscard]] double typical(std::size_t column) const { return median(samples[column]); }
};

/// Runs all measurements in turn, `repetitions` times, and more often where the CPUs were moved, until there are enough
/// at each distance that was seen. Reports its progress on standard error under the name `program`. Tables that depend
/// on the distance have it in their names.
[[nodiscard]] std::vector<Measured> measure(const std::vector<Measurement>& measurements, int repetitions,
                                            std::string_view program, const Cpus& cpus);

/// A bound for a ratio or a figure, with its value in each repetition. scripts/bench judges it.
struct Goal {
    std::string text;
    bool at_least = false;  ///< else at most
    double bound = 0;
    Samples reached;                  ///< by repetition
    std::vector<std::string> tables;  ///< where its figures are from
};

/// A reason not to believe the figures.
struct Noise {
    std::string text;
    std::string table{};  ///< concerns only the figures of this table; empty: all
};

}  // namespace pollcore::bench
