#include "ring_goals.hpp"

#include "board.hpp"
#include "ring_rows.hpp"

namespace pollcore::bench {
namespace {

void add_goals(Board& board) {
    const std::string lines = "ring, 64 B";
    board.from(lines);
    const auto ours = [&](const char* column) { return board.samples(lines, kOurs, column); };
    const auto limit = [&](const char* column) { return board.samples(lines, kStreamLimit, column); };
    const auto other = [&](const char* column) { return board.best(lines, column, is_other); };
    board.at_least("ring, 64 B, by 32, 4096 slots / stream limit", 0.93,
                   ratio(ours("4096, by 32"), limit("4096, by 32")));
    board.at_least("ring, 64 B, by 32, 4096 slots / best other ring", 1.05,
                   ratio(ours("4096, by 32"), other("4096, by 32")));
    board.at_least("ring, 64 B, one at a time, 4096 slots / stream limit", 0.90,
                   ratio(ours("4096, one"), limit("4096, one")));
    board.at_least("ring, 64 B, one at a time, 4096 slots / best other ring", 1.0,
                   ratio(ours("4096, one"), other("4096, one")));
    board.at_least("ring, 64 B, by 32, 1024 slots / best other ring", 1.3,
                   ratio(ours("1024, by 32"), other("1024, by 32")));
    board.at_least("ring, 64 B, one at a time, 1024 slots / best other ring", 1.3,
                   ratio(ours("1024, one"), other("1024, one")));
    const std::string trips = "round trip";
    board.from(trips);
    const auto trip = [&](const char* row, const char* column = "median") { return board.samples(trips, row, column); };
    board.at_most("ring, round trip / two lines", 1.10, ratio(trip(kOurs), trip(kTwoLines)));
    board.at_most("ring, round trip p99 / the limit's p99", 1.10, ratio(trip(kOurs, "p99"), trip(kTwoLines, "p99")));
}

}  // namespace

std::vector<Goal> ring_goals(const std::vector<Measured>& all) {
    return goals_by_distance(all, add_goals);
}

}  // namespace pollcore::bench
