// Looks up measured figures and makes goals from them.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "measurement.hpp"

namespace pollcore::bench {

/// Combines two figures repetition by repetition. A figure is NaN in a repetition in which it has no value.
[[nodiscard]] inline Samples combine(const Samples& a, const Samples& b,
                                     const std::function<double(double, double)>& how) {
    Samples result;
    std::transform(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin(),
                   std::back_inserter(result), how);
    return result;
}
[[nodiscard]] inline Samples ratio(const Samples& a, const Samples& b) {
    return combine(a, b, std::divides<>());
}
[[nodiscard]] inline Samples difference(const Samples& a, const Samples& b) {
    return combine(a, b, std::minus<>());
}

/// The figures of one distance between CPUs, or the figures that depend on no distance. Makes goals from these figures.
class Board {
public:
    Board(const std::vector<Measured>& all, std::optional<Distance> distance) : all_(all), distance_(distance) {}

    [[nodiscard]] std::optional<Distance> distance() const noexcept { return distance_; }
    /// Returns an empty list if the figure was not measured at this distance.
    [[nodiscard]] Samples samples(std::string_view table, std::string_view row, std::string_view column) const {
        for (const Measured& one : all_) {
            const auto at = std::find(one.columns.begin(), one.columns.end(), column);
            if (one.distance == distance_ && one.table.starts_with(table) && one.row == row &&
                at != one.columns.end()) {
                return one.samples[static_cast<std::size_t>(at - one.columns.begin())];
            }
        }
        return {};
    }
    /// Returns for each repetition the largest value among the table's rows for which `counts` returns true.
    [[nodiscard]] Samples best(std::string_view table, std::string_view column,
                               const std::function<bool(const std::string& row)>& counts) const {
        Samples best;
        for (const Measured& one : all_) {
            if (one.distance == distance_ && one.table.starts_with(table) && counts(one.row)) {
                const Samples more = samples(table, one.row, column);
                best = best.empty() ? more : combine(best, more, [](double a, double b) { return std::max(a, b); });
            }
        }
        return best;
    }

    /// Names the tables from which the next goals take their figures: all tables whose names begin with `tables`.
    void from(std::string_view tables) {
        tables_.clear();
        for (const Measured& one : all_) {
            if (one.distance == distance_ && one.table.starts_with(tables) &&
                std::find(tables_.begin(), tables_.end(), one.table) == tables_.end()) {
                tables_.push_back(one.table);
            }
        }
    }
    /// Adds a goal, unless `reached` has no values.
    void at_least(std::string text, double bound, const Samples& reached) {
        add(std::move(text), true, bound, reached);
    }
    void at_most(std::string text, double bound, const Samples& reached) {
        add(std::move(text), false, bound, reached);
    }

    [[nodiscard]] std::vector<Goal> goals() && { return std::move(goals_); }

private:
    void add(std::string text, bool at_least, double bound, const Samples& reached) {
        if (present(reached).empty()) {
            return;
        }
        if (distance_) {
            text += ", " + std::string(name_of(*distance_));
        }
        goals_.push_back({std::move(text), at_least, bound, present(reached), tables_});
    }

    const std::vector<Measured>& all_;
    std::optional<Distance> distance_;
    std::vector<std::string> tables_;
    std::vector<Goal> goals_;
};

/// Returns the goals that `make` adds for the figures without a distance, and for the distances near and far. There are
/// no goals for siblings, because nobody puts a worker and its application on one core.
[[nodiscard]] inline std::vector<Goal> goals_by_distance(const std::vector<Measured>& all,
                                                         const std::function<void(Board&)>& make) {
    std::vector<Goal> goals;
    for (const std::optional<Distance> distance :
         {std::optional<Distance>{}, std::optional{Distance::near}, std::optional{Distance::far}}) {
        Board board(all, distance);
        make(board);
        for (Goal& goal : std::move(board).goals()) {
            goals.push_back(std::move(goal));
        }
    }
    return goals;
}

}  // namespace pollcore::bench
