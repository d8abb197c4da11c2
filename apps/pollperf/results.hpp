// The results of a measurement, for the report and the JSON file.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "figures.hpp"
#include "pollcore/latency.hpp"
#include "round_trip.hpp"
#include "threads.hpp"
#include "workload.hpp"

namespace pollcore::perf {

/// The result of one operation on one path.
struct PathResult {
    Op op{};
    PathKind path{};
    std::uint32_t size = 0;  ///< bytes of a message
    bool inlined = false;
    /// If true, `summary` has times of half a round trip, else times of an operation up to its completion.
    bool half_round_trip = false;
    Summary summary;

    // Totals of the timed part.
    double wall_ns = 0;
    double samples_sum_ns = 0;
    std::uint64_t messages = 0;  ///< sends, writes, reads or atomics that this process posted
    std::uint64_t send_doorbells = 0;
    std::uint64_t receive_doorbells = 0;
    ContextSwitches application;
    std::optional<ContextSwitches> worker;
    std::optional<StageLatency> stages;  ///< stages of a sample of the requests; only on paths with a worker
    std::uint64_t steal_ms = 0;          ///< see steal_ms() in threads.hpp

    [[nodiscard]] double per_message(std::uint64_t count) const noexcept {
        return messages == 0 ? 0 : static_cast<double>(count) / static_cast<double>(messages);
    }
};

struct LatResults {
    std::vector<PathResult> paths;
    std::optional<RoundTrips> round_trip;
    std::string device;  ///< description of the device
    std::string peer;    ///< description of the other end, if the other end is another process
    std::string memory;  ///< the kind of memory of the runtime's rings and buffers; empty without a runtime
    bool hugepages = false;
    Machine machine;

    [[nodiscard]] const PathResult* find(Op op, PathKind path) const noexcept {
        for (const PathResult& result : paths) {
            if (result.op == op && result.path == path) {
                return &result;
            }
        }
        return nullptr;
    }
};

/// The time that a worker adds to an operation.
struct Hop {
    Op op{};
    double direct_ns = 0;
    double worker_ns = 0;  ///< time on path `runtime`, or on path `attached` if `runtime` was not measured
    double difference_ns = 0;
    std::optional<double> round_trips;  ///< difference_ns as a multiple of the raw round trip
    std::optional<double> attached_ns;  ///< time on path `attached`, if `runtime` was measured, too
};
/// The hops of the operations that were measured both by plain verbs (direct or event) and through a worker.
[[nodiscard]] std::vector<Hop> hops(const LatResults& results);

}  // namespace pollcore::perf
