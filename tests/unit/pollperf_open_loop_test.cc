// pollperf's open loop, which posts each operation when it is due, and the closed loop where the two differ. They run
// on a model of a device whose time is a number.
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/measure/histogram.hpp"
#include "pollperf_window_fixture.hpp"

namespace pollcore::perf {
namespace {

[[nodiscard]] Workload open_workload(std::uint32_t tx_depth) {
    Workload workload = many(Op::write, tx_depth);
    workload.test = perf::Test::lat;
    return workload;
}
constexpr std::uint32_t kDeep = 1u << 15;
constexpr double kPerSecond = 1e6;
constexpr std::uint64_t kStallMs = 10;
constexpr std::uint64_t kDueInStall = 10'000;
constexpr std::chrono::milliseconds kOpenTime{100};
constexpr std::uint64_t kDueInAll = 100'000;
constexpr double kDelayedNs = 10'000;

struct Delayed {
    std::uint64_t count = 0;
    double median_ms = 0;
};
// The requests with a latency that an undisturbed device does not have.
Delayed delayed_of(const Histogram& latency) {
    Delayed delayed;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> buckets;
    latency.for_each([&](std::uint64_t units, std::uint64_t samples) {
        if (static_cast<double>(units) / kUnitsPerNs > kDelayedNs) {
            delayed.count += samples;
            buckets.emplace_back(units, samples);
        }
    });
    std::uint64_t below = 0;
    for (const auto& [units, samples] : buckets) {
        below += samples;
        if (2 * below >= delayed.count) {
            delayed.median_ms = static_cast<double>(units) / kUnitsPerNs / 1e6;
            break;
        }
    }
    return delayed;
}

struct OpenRun : WindowRun {
    using WindowRun::WindowRun;
    // A stall of the device, from a time after the beginning.
    void stall_at(std::uint64_t ms) {
        path.stall_from = path.time + of_ms(static_cast<double>(ms));
        path.stall_to = path.stall_from + of_ms(kStallMs);
    }
    Done open(bool poisson, double per_s = kPerSecond, std::uint64_t seed = 1) {
        return window.run_open({.time = kOpenTime}, {.per_s = per_s, .poisson = poisson, .seed = seed}, recorder);
    }
    // Each due request counts once. Returns the latencies.
    Histogram expect_all(const Done& done) {
        std::uint64_t posted = 0;
        for (unsigned end = 0; end < senders; ++end) {
            posted += path.end(end).issued;
        }
        EXPECT_EQ(done.operations, posted);
        EXPECT_EQ(path.carried_out, posted);
        expect_idle("open loop");
        auto [latency, slices] = recorder.take();
        EXPECT_EQ(latency.count(), posted);
        std::uint64_t in_slices = 0;
        for (const Slice& slice : slices) {
            in_slices += slice.operations;
        }
        EXPECT_EQ(in_slices, posted);
        return latency;
    }
};

void expect_due(const Done& done, bool poisson) {
    if (poisson) {
        EXPECT_NEAR(static_cast<double>(done.operations), static_cast<double>(kDueInAll),
                    5 * std::sqrt(static_cast<double>(kDueInAll)));
    } else {
        EXPECT_EQ(done.operations, kDueInAll);
    }
}

// The reason for the open loop: all requests that were due during a stall show it.
TEST(PollperfOpenLoop, AStallOfTheDeviceDelaysAllRequestsThatAreDueMeanwhile) {
    for (const bool poisson : {false, true}) {
        OpenRun run(open_workload(kDeep));
        run.stall_at(30);
        const Done done = run.open(poisson);
        expect_due(done, poisson);
        EXPECT_EQ(done.late, 0u) << "the thread has posted all in time";
        const Histogram latency = run.expect_all(done);
        const Delayed delayed = delayed_of(latency);
        EXPECT_GE(delayed.count, kDueInStall);
        EXPECT_LT(delayed.count, 3 * kDueInStall);  // the device has to do what was left over, too
        EXPECT_GT(delayed.median_ms, 1);
        EXPECT_LT(delayed.median_ms, 10);
        EXPECT_NEAR(static_cast<double>(latency.greatest()), static_cast<double>(of_ms(kStallMs)),
                    static_cast<double>(of_ms(0.1)));
    }
}

TEST(PollperfWindow, AStallOfTheDeviceDelaysNoMoreThanTheDepthOfAClosedLoop) {
    for (const std::uint32_t depth : {1u, 16u}) {
        OpenRun run(open_workload(depth));
        run.stall_at(30);
        run.milliseconds(100);
        const Delayed delayed = delayed_of(run.recorder.take().first);
        EXPECT_GE(delayed.count, 1u);
        EXPECT_LE(delayed.count, depth);
    }
}

TEST(PollperfOpenLoop, AFullQueueDelaysThemTheSameAndTheyArePostedLate) {
    for (const bool poisson : {false, true}) {
        OpenRun run(open_workload(64));
        run.stall_at(30);
        const Done done = run.open(poisson);
        expect_due(done, poisson);
        EXPECT_EQ(run.path.most_in_flight, 64u);
        const Delayed delayed = delayed_of(run.expect_all(done));
        EXPECT_GE(delayed.count, kDueInStall);
        EXPECT_GT(delayed.median_ms, 1);
        EXPECT_GE(done.late, kDueInStall - 3 * 64);
        EXPECT_LE(done.late, delayed.count + 64);
    }
}

TEST(PollperfOpenLoop, AStallOfTheThreadDelaysThemTheSameAndTheyArePostedLate) {
    for (const bool poisson : {false, true}) {
        OpenRun run(open_workload(kDeep));
        run.path.pause_at = run.path.time + of_ms(30);
        run.path.pause = of_ms(kStallMs);
        const Done done = run.open(poisson);
        expect_due(done, poisson);
        const Delayed delayed = delayed_of(run.expect_all(done));
        EXPECT_GE(delayed.count, kDueInStall);
        EXPECT_GT(delayed.median_ms, 1);
        EXPECT_NEAR(static_cast<double>(done.late), static_cast<double>(kDueInStall), 0.05 * kDueInStall);
    }
}

// With a path through the runtime, the ring may be full.
TEST(PollperfOpenLoop, ARefusedRequestIsPostedLaterAndCountsOnce) {
    OpenRun run(open_workload(kDeep), 3);
    std::mt19937 random(1);
    run.path.takes = [&](std::uint32_t n) { return random() % 10 == 0 ? 0 : n; };
    const Done done = run.open(false);
    expect_due(done, false);
    (void)run.expect_all(done);
}

TEST(PollperfOpenLoop, AQueueThatStaysFullEndsWithAnError) {
    OpenRun run(open_workload(kDeep), 2);
    run.give_up_soon();
    run.path.takes = [](std::uint32_t) { return 0u; };
    EXPECT_THROW((void)run.open(false), MeasurementError);
}

TEST(PollperfOpenLoop, ADeviceThatNeverAnswersEndsWithAnError) {
    OpenRun run(open_workload(64), 2);
    run.give_up_soon();
    run.path.stall_to = ~std::uint64_t{0};
    try {
        (void)run.open(true);
        ADD_FAILURE();
    } catch (const MeasurementError& error) {
        EXPECT_STREQ(error.what(), "end 0 waits for the completion of its request");
    }
}

TEST(PollperfOpenLoop, WhatIsDueBeforeTheEndCountsThoughItIsDoneAfterIt) {
    for (const std::uint32_t depth : {64u, kDeep}) {
        OpenRun run(open_workload(depth));
        run.stall_at(95);
        const Done done = run.open(false);
        expect_due(done, false);
        EXPECT_GE(done.units, of_ms(105));
        EXPECT_GE(delayed_of(run.expect_all(done)).count, 5000u);
    }
}

TEST(PollperfOpenLoop, IterationsAreExactAndEndsTakeTurns) {
    for (const bool poisson : {false, true}) {
        OpenRun run(open_workload(kDeep), 3);
        const Done done =
            run.window.run_open({.operations = 12'345}, {.per_s = kPerSecond, .poisson = poisson}, run.recorder);
        EXPECT_EQ(done.operations, 12'345u);
        for (unsigned end = 0; end < 3; ++end) {
            EXPECT_EQ(run.path.end(end).issued, 4115u);
        }
        EXPECT_NEAR(static_cast<double>(done.units) / kUnitsPerNs / 1e6, 12.345, poisson ? 0.6 : 0.01);
        (void)run.expect_all(done);
    }
}

TEST(PollperfOpenLoop, VerifiedOperationsPassAndAWrongByteIsFound) {
    for (const Op op : kOps) {
        Workload workload = verified(many(op, 64));
        workload.test = perf::Test::lat;
        OpenRun run(workload, 2);
        EXPECT_NO_THROW((void)run.window.run_open({.operations = 2000}, {.per_s = kPerSecond}, run.recorder));
        EXPECT_NO_THROW(run.check_far_ends()) << op_name(op);
        OpenRun wrong(workload, 2);
        wrong.path.spoil_number = 995;
        const auto measure = [&] {
            (void)wrong.window.run_open({.operations = 2000}, {.per_s = kPerSecond}, wrong.recorder);
            wrong.check_far_ends();
        };
        EXPECT_THROW(measure(), MeasurementError) << op_name(op);
    }
}

// The times between arrivals.
struct Gaps {
    double mean_ns = 0;
    double variation = 0;  // standard deviation divided by the mean
};
Gaps gaps_of(const std::vector<std::uint64_t>& times) {
    std::vector<double> gaps;
    for (std::size_t i = 1; i < times.size(); ++i) {
        gaps.push_back(static_cast<double>(times[i] - times[i - 1]) / kUnitsPerNs);
    }
    const double mean = std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size());
    double squares = 0;
    for (const double gap : gaps) {
        squares += (gap - mean) * (gap - mean);
    }
    return {mean, std::sqrt(squares / static_cast<double>(gaps.size())) / mean};
}

std::vector<std::uint64_t> arrivals_of(bool poisson, std::uint64_t seed, bool sleeps = false) {
    OpenRun run(open_workload(kDeep));
    run.path.poll_time = of_ns(20);
    run.path.sleeps = sleeps;
    run.path.latency = of_ns(100);
    run.path.service = 0;
    const Done done = run.open(poisson, 1e5, seed);
    EXPECT_EQ(done.late, 0u);
    return run.path.posted_at;
}

TEST(PollperfOpenLoop, ArrivalsHaveTheirMeanAndTheirVariation) {
    const Gaps fixed = gaps_of(arrivals_of(false, 1));
    EXPECT_NEAR(fixed.mean_ns, 10'000, 1);
    EXPECT_LT(fixed.variation, 0.01);
    // Of 10000 exponential gaps, the mean and the variation have a standard error of one percent.
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
        const Gaps poisson = gaps_of(arrivals_of(true, seed));
        EXPECT_NEAR(poisson.mean_ns, 10'000, 400);
        EXPECT_NEAR(poisson.variation, 1, 0.05);
    }
    EXPECT_EQ(arrivals_of(true, 1), arrivals_of(true, 1));
    EXPECT_NE(arrivals_of(true, 1), arrivals_of(true, 2));
}

TEST(PollperfOpenLoop, AnIntervalNeedNotBeAWholeNumberOfUnits) {
    OpenRun run(open_workload(kDeep));
    const Done done = run.open(false, 1.9e6);  // 1052.63 units
    EXPECT_NEAR(static_cast<double>(done.operations), 190'000, 1);
}

TEST(PollperfOpenLoop, AThreadThatSleepsWakesForTheNextRequest) {
    const Gaps fixed = gaps_of(arrivals_of(false, 1, true));
    EXPECT_NEAR(fixed.mean_ns, 10'000, 1);
    EXPECT_LT(fixed.variation, 0.01);
    OpenRun run(open_workload(kDeep));
    run.path.sleeps = true;
    const Done done = run.open(true, 1e4);
    EXPECT_EQ(done.late, 0u);
    EXPECT_LT(run.path.polls, 8 * done.operations);
}

}  // namespace
}  // namespace pollcore::perf
