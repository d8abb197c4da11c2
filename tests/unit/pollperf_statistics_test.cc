// What the rounds of a measurement say about its figures.
#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/report/intervals.hpp"
#include "pollperf/report/results.hpp"

namespace pollcore::perf {
namespace {

Measurement with_rounds(perf::Test test, std::uint32_t size, const std::vector<Round>& rounds) {
    Measurement one{.test = test, .size = size};
    one.rounds = rounds;
    for (const Round& round : rounds) {
        one.operations += round.operations;
        one.seconds += round.seconds;
    }
    return one;
}

TEST(PollperfBootstrap, FewerThanSixValuesHaveNoInterval) {
    EXPECT_FALSE(bootstrap_median({}));
    EXPECT_FALSE(bootstrap_median(std::vector<double>{1, 2, 3, 4, 5}));
    EXPECT_TRUE(bootstrap_median(std::vector<double>{1, 2, 3, 4, 5, 6}));
}

TEST(PollperfBootstrap, EqualValuesHaveAnIntervalWithoutWidth) {
    const auto interval = bootstrap_median(std::vector<double>(8, 250.5));
    ASSERT_TRUE(interval);
    EXPECT_DOUBLE_EQ(interval->low, 250.5);
    EXPECT_DOUBLE_EQ(interval->median, 250.5);
    EXPECT_DOUBLE_EQ(interval->high, 250.5);
}

TEST(PollperfBootstrap, TheMedianIsThatOfTheValuesAndLiesInTheInterval) {
    const auto odd = bootstrap_median(std::vector<double>{9, 1, 8, 2, 7, 3, 5});
    ASSERT_TRUE(odd);
    EXPECT_DOUBLE_EQ(odd->median, 5);
    EXPECT_LE(odd->low, 5);
    EXPECT_GE(odd->high, 5);
    EXPECT_GE(odd->low, 1);
    EXPECT_LE(odd->high, 9);
    const auto even = bootstrap_median(std::vector<double>{9, 1, 8, 2, 7, 3});
    ASSERT_TRUE(even);
    EXPECT_DOUBLE_EQ(even->median, 5);
}

TEST(PollperfBootstrap, OneResultHasOneInterval) {
    const std::vector<double> values{203, 207, 199, 211, 204, 203, 290, 201};
    const auto first = bootstrap_median(values), second = bootstrap_median(values);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->low, second->low);
    EXPECT_EQ(first->high, second->high);
}

TEST(PollperfBootstrap, AnOutlierDoesNotWidenTheInterval) {
    const auto interval = bootstrap_median(std::vector<double>{100, 101, 102, 103, 104, 105, 106, 107, 108, 100'000});
    ASSERT_TRUE(interval);
    EXPECT_LT(interval->high, 110);
}

TEST(PollperfBootstrap, TheIntervalHasTheTrueMedianInAboutNineteenOfTwentyMeasurements) {
    std::mt19937_64 random(7);
    std::normal_distribution<> draw(1000, 50);
    int inside = 0, narrow = 0;
    constexpr int kMeasurements = 300;
    for (int i = 0; i < kMeasurements; ++i) {
        std::vector<double> values(25);
        std::ranges::generate(values, [&] { return draw(random); });
        const auto interval = bootstrap_median(values);
        ASSERT_TRUE(interval);
        inside += interval->low <= 1000 && 1000 <= interval->high;
        // The standard error of a median of 25 is 1.25 * 50 / 5; the interval has about four of them.
        narrow += interval->high - interval->low < 100;
    }
    EXPECT_GE(inside, kMeasurements * 90 / 100);
    EXPECT_LE(inside, kMeasurements * 99 / 100);
    EXPECT_GE(narrow, kMeasurements * 95 / 100);
}

TEST(PollperfQuantile, NeighboursAreInterpolated) {
    EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
    EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.25), 1.75);
    EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0), 1);
    EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 1), 4);
    EXPECT_DOUBLE_EQ(quantile({7}, 0.75), 7);
}

TEST(PollperfRounds, EachTestIsComparedByItsOwnFigure) {
    const std::vector<Round> rounds{{.seconds = 0.5, .operations = 100, .median_ns = 300},
                                    {.seconds = 0.25, .operations = 100, .median_ns = 500}};
    EXPECT_EQ(round_values(with_rounds(perf::Test::lat, 8, rounds)), (std::vector<double>{300, 500}));
    EXPECT_EQ(round_values(with_rounds(perf::Test::bw, 8, rounds)), (std::vector<double>{1600, 3200}));
    EXPECT_EQ(round_values(with_rounds(perf::Test::rate, 8, rounds)), (std::vector<double>{200, 400}));
    EXPECT_EQ(figure_name(main_figure({.test = perf::Test::lat})), "typical_ns");
    EXPECT_EQ(figure_name(main_figure({.test = perf::Test::bw})), "bytes_per_s");
    EXPECT_EQ(figure_name(main_figure({.test = perf::Test::rate})), "operations_per_s");
}

TEST(PollperfRounds, ARoundThatMeasuredNothingHasNoValue) {
    const std::vector<Round> rounds{{.seconds = 0, .operations = 0, .median_ns = 0},
                                    {.seconds = 1, .operations = 10, .median_ns = 7}};
    EXPECT_EQ(round_values(with_rounds(perf::Test::lat, 8, rounds)), std::vector<double>{7});
    EXPECT_EQ(round_values(with_rounds(perf::Test::rate, 8, rounds)), std::vector<double>{10});
}

TEST(PollperfRounds, TheRoundsOfBothDirectionsHaveTheRateOfBoth) {
    Measurement one =
        with_rounds(perf::Test::rate, 8, {{.seconds = 1, .operations = 90}, {.seconds = 1, .operations = 110}});
    one.bidirectional = true;
    one.peer_operations = 100;
    one.peer_seconds = 1;
    const std::vector<double> values = round_values(one);
    ASSERT_EQ(values.size(), 2u);
    EXPECT_DOUBLE_EQ(values[0], 180);
    EXPECT_DOUBLE_EQ(values[1], 220);
    EXPECT_DOUBLE_EQ((values[0] + values[1]) / 2, one.operations_per_s());
}

TEST(PollperfDisturbance, RoundsAreAddedUpAndFrequenciesHaveTheirLimits) {
    Measurement one;
    EXPECT_EQ(one.disturbance().frequency_low_mhz, 0);
    EXPECT_FALSE(one.disturbance().worker);
    one.rounds = {
        {.disturbance = {.steal_ms = 10,
                         .migrations = 1,
                         .application = {2, 3},
                         .worker = {},
                         .frequency_low_mhz = 2000,
                         .frequency_high_mhz = 2500}},
        {.disturbance = {.steal_ms = 5,
                         .migrations = 2,
                         .application = {20, 30},
                         .worker = ContextSwitches{4, 5},
                         .frequency_low_mhz = 0,
                         .frequency_high_mhz = 0}},
        {.disturbance = {.worker = ContextSwitches{1, 1}, .frequency_low_mhz = 1800, .frequency_high_mhz = 2100}},
        {}};
    const Disturbance all = one.disturbance();
    EXPECT_EQ(all.steal_ms, 15u);
    EXPECT_EQ(all.migrations, 3u);
    EXPECT_EQ(all.application.voluntary, 22u);
    EXPECT_EQ(all.application.involuntary, 33u);
    ASSERT_TRUE(all.worker);
    EXPECT_EQ(all.worker->voluntary, 5u);
    EXPECT_EQ(all.worker->involuntary, 6u);
    EXPECT_EQ(all.frequency_low_mhz, 1800);
    EXPECT_EQ(all.frequency_high_mhz, 2500);
}

Measurement with_latency(Op op, PathKind path, std::uint32_t size, std::uint64_t ns) {
    Measurement one{.test = perf::Test::lat, .op = op, .path = path, .size = size};
    one.latency.add(ns, 1000);
    return one;
}

TEST(PollperfHops, EachOperationAndSizeThatBothWaysMeasuredHasAHop) {
    Results results;
    results.measurements = {
        with_latency(Op::send, PathKind::direct, 2, 100),   with_latency(Op::send, PathKind::direct, 64, 120),
        with_latency(Op::send, PathKind::runtime, 2, 300),  with_latency(Op::send, PathKind::runtime, 64, 340),
        with_latency(Op::send, PathKind::attached, 2, 350), with_latency(Op::read, PathKind::runtime, 2, 300),
        with_latency(Op::write, PathKind::event, 2, 400),   with_latency(Op::write, PathKind::attached, 2, 450)};
    results.round_trip = RoundTrips{.before = {.typical_ns = 90}, .after = {.typical_ns = 110}};
    const std::vector<Hop> found = hops(results);
    ASSERT_EQ(found.size(), 3u);
    EXPECT_EQ(found[0].size, 2u);
    EXPECT_DOUBLE_EQ(found[0].difference_ns, 200);
    EXPECT_DOUBLE_EQ(found[0].round_trips.value(), 2);
    EXPECT_DOUBLE_EQ(found[0].attached_ns.value(), 350);
    EXPECT_EQ(found[1].size, 64u);
    EXPECT_DOUBLE_EQ(found[1].difference_ns, 220);
    EXPECT_FALSE(found[1].attached_ns);
    EXPECT_EQ(found[2].op, Op::write);
    EXPECT_DOUBLE_EQ(found[2].direct_ns, 400);
    EXPECT_DOUBLE_EQ(found[2].worker_ns, 450);
    EXPECT_FALSE(found[2].attached_ns);
}

TEST(PollperfHops, OtherTestsAndPathsWithoutSamplesHaveNone) {
    Results results;
    results.measurements = {with_latency(Op::send, PathKind::direct, 2, 100),
                            with_latency(Op::send, PathKind::runtime, 2, 300)};
    EXPECT_EQ(hops(results).size(), 1u);
    results.measurements[1].latency.clear();
    EXPECT_TRUE(hops(results).empty());
    results.measurements[1].latency.add(300);
    results.measurements[0].test = results.measurements[1].test = perf::Test::bw;
    EXPECT_TRUE(hops(results).empty());
}

}  // namespace
}  // namespace pollcore::perf
