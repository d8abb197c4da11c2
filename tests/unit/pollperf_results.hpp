// Results of pollperf that no device has measured, for the tests of their forms.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

[[nodiscard]] inline Measurement measured_one(perf::Test test, Op op, PathKind path, std::uint32_t size,
                                              std::uint64_t typical) {
    Measurement one{.test = test, .op = op, .path = path, .size = size, .half_round_trip = !is_answered(op)};
    one.latency.add(typical / 2);
    one.latency.add(typical, 9989);
    one.latency.add(10 * typical, 10);
    one.operations = 10'000;
    one.seconds = 0.5;
    one.messages = 20'000;
    one.send_doorbells = 10'000;
    one.receive_doorbells = 500;
    for (int i = 0; i < 8; ++i) {
        one.rounds.push_back({.seconds = 0.0625,
                              .operations = 1250 + static_cast<std::uint64_t>(i),
                              .median_ns = static_cast<double>(typical) + i,
                              .p99_ns = 2.0 * static_cast<double>(typical),
                              .disturbance = {.steal_ms = 1, .migrations = 0, .application = {0, 1}}});
    }
    return one;
}

[[nodiscard]] inline Results results_of(perf::Test test, std::vector<Measurement> measurements) {
    Results results;
    results.test = test;
    results.command = fmt::format("pollperf {} -o all", test_name(test));
    results.began = "2026-11-29T07:20:00Z";
    results.device = "soft soft0 (fabric soft0)";
    results.settings = {{"core", "0"}, {"worker-core", "1"}, {"iters", "10000"}};
    results.measurements = std::move(measurements);
    results.host = {.name = "here", .machine = {.cpu_model = "A CPU", .cpus_online = 2, .kernel = "Linux 6.1"}};
    return results;
}

/// Everything that a result can have.
[[nodiscard]] inline Results full_results() {
    Measurement one = measured_one(perf::Test::lat, Op::send, PathKind::runtime, 64, 400);
    one.queue_pairs = 2;
    one.sessions = 3;
    one.workers = 1;
    one.bidirectional = true;
    one.peer_operations = 10'000;
    one.peer_seconds = 0.5;
    one.sent = 10'100;
    one.arrived = 9990;
    one.offered_per_s = 25'000;
    one.posted_late = 7;
    one.rounds[0].disturbance.worker = ContextSwitches{3, 4};
    one.slices = {{.at_s = 0.1, .seconds = 0.1, .operations = 2000, .median_ns = 400, .p99_ns = 410, .max_ns = 500}};
    StageLatency stages;
    stages.submission_ring.counts[LatencyHistogram::bucket_of(1000)] = 10;
    stages.device.counts[LatencyHistogram::bucket_of(2000)] = 9;
    stages.completion_ring.counts[LatencyHistogram::bucket_of(3000)] = 8;
    one.stages = stages;
    Results results =
        results_of(perf::Test::lat, {one, measured_one(perf::Test::lat, Op::send, PathKind::direct, 64, 200),
                                     measured_one(perf::Test::lat, Op::send, PathKind::attached, 64, 440)});
    results.peer = "the other end";
    results.memory = "2 MiB of huge pages";
    results.hugepages = true;
    results.round_trip = RoundTrips{.before = {.typical_ns = 90, .p99_ns = 120, .core = 0, .other = 1},
                                    .after = {.typical_ns = 110, .p99_ns = 130, .core = 0, .other = 1}};
    results.peer_host = HostFacts{.name = "there"};
    results.warnings = {"a sentence"};
    return results;
}

}  // namespace pollcore::perf
