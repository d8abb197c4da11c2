// The goals that scripts/bench derives from the rows of measurements, also when some rows are missing.
#include "board.hpp"

#include <gtest/gtest.h>

namespace pollcore::bench {
namespace {

Measured row(std::string name, std::vector<Samples> samples) {
    Measured one;
    one.table = "ring, 64 B";
    one.row = std::move(name);
    one.columns = {"one", "by 32"};
    one.samples = std::move(samples);
    one.distance = Distance::near;
    return one;
}

void add_goals(Board& board) {
    board.from("ring");
    board.at_least("ours / limit", 0.9,
                   ratio(board.samples("ring", "ours", "one"), board.samples("ring", "limit", "one")));
    board.at_least("ours / best other", 1,
                   ratio(board.samples("ring", "ours", "by 32"),
                         board.best("ring", "by 32", [](const std::string& name) { return name != "ours"; })));
}

TEST(Board, GoalsHaveTheRatiosOfEachRepetition) {
    const auto goals = goals_by_distance(
        {row("ours", {{8, 9}, {30, 40}}), row("limit", {{10, 10}, {20, 10}}), row("other", {{1, 1}, {10, 20}})},
        add_goals);
    ASSERT_EQ(goals.size(), 2u);
    EXPECT_EQ(goals[0].text, "ours / limit, near CPUs");
    EXPECT_EQ(goals[0].reached, (Samples{0.8, 0.9}));
    EXPECT_EQ(goals[1].reached, (Samples{1.5, 2}));
    EXPECT_EQ(goals[1].tables, (std::vector<std::string>{"ring, 64 B"}));
}

TEST(Board, AGoalIsLeftOutIfOneOfItsRowsWasNotMeasured) {
    const auto goals =
        goals_by_distance({row("ours", {{8, 9}, {30, 40}}), row("other", {{1, 1}, {10, 20}})}, add_goals);
    ASSERT_EQ(goals.size(), 1u);
    EXPECT_EQ(goals[0].text, "ours / best other, near CPUs");
    EXPECT_TRUE(goals_by_distance({}, add_goals).empty());
}

}  // namespace
}  // namespace pollcore::bench
