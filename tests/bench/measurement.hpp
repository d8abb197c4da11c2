// What is measured, and how often: each measurement is repeated, all of them by turns, so that what is compared was
// measured within the same moments.
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

/// Those that there are.
[[nodiscard]] Samples present(const Samples& samples);
/// Sorts a copy; of an even number the mean of the middle two. NaN of nothing.
[[nodiscard]] double median(const Samples& samples);

/// A row of a table.
struct Measurement {
    std::string table;
    std::string row;
    std::vector<std::string> columns;
    /// One repetition: a value for each column.
    std::function<std::vector<double>()> once;
    /// It depends on how far two CPUs are from each other. What was measured while they were moved is thrown away.
    bool between_cpus = false;
};

/// What came of a measurement, at one distance where it depends on that.
struct Measured {
    std::string table;
    std::string row;
    std::vector<std::string> columns;
    std::optional<Distance> distance;
    std::vector<Samples> samples;  ///< by column

    [[nodiscard]] double typical(std::size_t column) const { return median(samples[column]); }
};

/// All of them by turns, so many times, and more where the CPUs were moved: until there are enough at each distance
/// that was seen. `program` says on standard error how far it has come. Tables that depend on the distance have it in
/// their names.
[[nodiscard]] std::vector<Measured> measure(const std::vector<Measurement>& measurements, int repetitions,
                                            std::string_view program, const Cpus& cpus);

/// A goal: what must be reached, as a ratio or a figure of each repetition. scripts/bench judges it.
struct Goal {
    std::string text;
    bool at_least = false;  ///< else at most
    double bound = 0;
    Samples reached;                  ///< by repetition
    std::vector<std::string> tables;  ///< that its figures are from
};

/// Why not to believe what was measured meanwhile.
struct Noise {
    std::string text;
    std::string table{};  ///< only the figures of this one; empty: all
};

}  // namespace pollcore::bench
