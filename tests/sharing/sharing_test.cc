// Checks which lines of memory move between CPUs. A worker and its application must not write a line that another
// worker or its application accesses. Between a worker and its application, nearly all moving lines are ring lines.
#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "access_record.hpp"
#include "pollcore/work_request.hpp"
#include "two_workers.hpp"

namespace pollcore::sharing {
namespace {

bool touched_by_pair(const Line& line, int pair) {
    return line.touched_by(kApplications[pair]) || line.touched_by(kWorkers[pair]);
}
bool written_by_pair(const Line& line, int pair) {
    return line.written_by(kApplications[pair]) || line.written_by(kWorkers[pair]);
}
/// True if one pair of application and worker writes the line and the other pair accesses it.
bool shared_by_pairs(const Line& line) {
    return (written_by_pair(line, 0) && touched_by_pair(line, 1)) ||
           (written_by_pair(line, 1) && touched_by_pair(line, 0));
}

using Shape = std::tuple<std::uint32_t, std::uint32_t>;  // devices, burst
class TwoWorkersTest : public ::testing::TestWithParam<Shape> {};

TEST_P(TwoWorkersTest, ShareNoLineThatOneOfThemWrites) {
    const auto [devices, burst] = GetParam();
    run(TwoWorkers{.devices = devices, .burst = burst});
    const std::vector<Line> all = lines();
    for (int pair = 0; pair < 2; ++pair) {
        const auto request = [&](const Line& line) {
            return line.written_by(kApplications[pair]) && line.touched_by(kWorkers[pair]);
        };
        EXPECT_GE(std::count_if(all.begin(), all.end(), request), burst)
            << "application " << pair << " and its worker were recorded";
    }
    for (const Line& line : all) {
        EXPECT_FALSE(shared_by_pairs(line)) << std::hex << line.address << std::dec << line.text();
    }
}

INSTANTIATE_TEST_SUITE_P(On, TwoWorkersTest, ::testing::Combine(::testing::Values(1u, 2u), ::testing::Values(1u, 32u)),
                         [](const auto& one) {
                             return std::to_string(std::get<0>(one.param)) + "_devices_bursts_of_" +
                                    std::to_string(std::get<1>(one.param));
                         });

/// The number of times that lines move between an application and its worker, per operation.
double moves_of(const OneWorker& load) {
    run(load);
    std::uint64_t all = 0;
    for (const Line& line : lines()) {
        all += line.moves();
    }
    return static_cast<double>(all) / (load.burst * load.bursts);
}

// The line of a request moves to the worker, and it moves back when its slot is written again. A line of completions
// moves in the same way, but holds the completions of two operations.
TEST(OneWorkerTest, MovesTheLinesOfTheRingsAndHardlyAnyOther) {
    EXPECT_NEAR(moves_of({.burst = 32}), 3, 0.05);
    EXPECT_NEAR(moves_of({.burst = 32, .inline_bytes = WorkRequest::kOwnPayload}), 3, 0.05)
        << "the payload is in the request's line";
    EXPECT_NEAR(moves_of({.burst = 32, .inline_bytes = 56}), 5, 0.05) << "the payload has a line";
}

// The line of a single operation moves four times: when the worker reads it, when the worker writes it, when the
// application reads it and when the application writes it. If the worker fetched the line for writing at once, one move
// would be saved.
TEST(OneWorkerTest, MovesOneLineForAnOperationByItself) {
    EXPECT_NEAR(moves_of({.burst = 1}), 4, 0.05);
}

}  // namespace
}  // namespace pollcore::sharing
