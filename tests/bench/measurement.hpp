// Measurements and their repetitions. All measurements take turns, so that compared figures are from the same moments.
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

/// One value for each repetition; NaN for a repetition without a value.
using Samples = std::vector<double>;

/// Returns the samples that are not NaN.
[[nodiscard]] Samples present(const Samples& samples);
/// Returns the mean of the middle two for an even number of samples, and NaN for no samples. Sorts a copy.
[[nodiscard]] double median(const Samples& samples);

/// A row of a table.
struct Measurement {
    std::string table;
    std::string row;
    std::vector<std::string> columns;
    /// Runs one repetition. Returns a value for each column.
    std::function<std::vector<double>()> once;
    /// True if the figures depend on the distance between two CPUs. Then a repetition during which the host moved the
    /// CPUs does not count.
    bool between_cpus = false;
};

/// The results of a measurement. If they depend on the distance between CPUs, these are the results at one distance.
struct Measured {
    std::string table;
    std::string row;
    std::vector<std::string> columns;
    std::optional<Distance> distance;
    std::vector<Samples> samples;  ///< by column

    [[nodiscard]] double typical(std::size_t column) const { return median(samples[column]); }
};

/// Runs all measurements in turn, `repetitions` times. If the host moved the CPUs, runs up to twice as many
/// repetitions, until each distance that was seen has more than half of `repetitions`. Reports its progress on standard
/// error under the name `program`. A table that depends on the distance has the distance in its name.
[[nodiscard]] std::vector<Measured> measure(const std::vector<Measurement>& measurements, int repetitions,
                                            std::string_view program, const Cpus& cpus);

/// A bound for a figure or a ratio, with the values that the repetitions reached. scripts/bench judges these values.
struct Goal {
    std::string text;
    bool at_least = false;  ///< true: the bound is a minimum; false: a maximum
    double bound = 0;
    Samples reached;                  ///< by repetition
    std::vector<std::string> tables;  ///< names of the tables from which the figures come
};

/// A reason to distrust the figures.
struct Noise {
    std::string text;
    std::string table{};  ///< name of the affected table; empty: all tables are affected
};

}  // namespace pollcore::bench
