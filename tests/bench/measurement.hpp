// What is measured, and how often: each measurement is repeated, all of them by turns, so that what is compared was measured
// within the same moments.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace pollcore::bench {

/// Sorts a copy; of an even number the mean of the middle two. Not of nothing.
[[nodiscard]] inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// A row of a table.
struct Measurement {
    std::string table;
    std::string row;
    std::vector<std::string> columns;
    /// One repetition: a value for each column.
    std::function<std::vector<double>()> once;
    std::vector<std::vector<double>> samples{};  ///< by column, then repetition

    [[nodiscard]] double typical(std::size_t column) const { return median(samples[column]); }
};

/// All of them by turns, so many times. `program` says on standard error how far it has come.
inline void measure(std::vector<Measurement>& measurements, int repetitions, std::string_view program) {
    for (int i = 0; i < repetitions; ++i) {
        std::cerr << program << ": repetition " << i + 1 << " of " << repetitions << '\n';
        for (Measurement& one : measurements) {
            one.samples.resize(one.columns.size());
            const std::vector<double> values = one.once();
            for (std::size_t column = 0; column < values.size(); ++column) {
                one.samples[column].push_back(values[column]);
            }
        }
    }
}

/// A goal: what must be reached, as a ratio or a figure of each repetition. scripts/bench judges it.
struct Goal {
    std::string text;
    bool at_least = false;  ///< else at most
    double bound = 0;
    std::vector<double> reached;      ///< by repetition
    std::vector<std::string> tables;  ///< how the names of those begin that its figures are from
};

/// Why not to believe what was measured meanwhile.
struct Noise {
    std::string text;
    std::string table{};  ///< only the figures of this one; empty: all
};

}  // namespace pollcore::bench
