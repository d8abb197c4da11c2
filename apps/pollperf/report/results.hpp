// What a run has measured, for all forms of output. One Results is one run of pollperf, with one Measurement for each
// operation, size and path.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pollcore/latency.hpp"
#include "pollperf/measure/histogram.hpp"
#include "pollperf/measure/workload.hpp"
#include "pollperf/round_trip.hpp"
#include "pollperf/threads.hpp"

namespace pollcore::perf {

/// What disturbed a part of a measurement. Differences of counters that the kernel keeps.
struct Disturbance {
    std::uint64_t steal_ms = 0;             ///< the hypervisor ran other machines, over all CPUs
    std::uint64_t migrations = 0;           ///< of the measuring threads to another CPU
    ContextSwitches application;            ///< of the measuring threads
    std::optional<ContextSwitches> worker;  ///< of the measured worker, if it belongs to this process
    double frequency_low_mhz = 0;           ///< of the measuring CPUs, the lowest seen; 0: the kernel does not say
    double frequency_high_mhz = 0;          ///< the highest seen
};

/// One of the equal parts of a measurement. Paths take turns by rounds.
struct Round {
    double seconds = 0;
    std::uint64_t operations = 0;
    double median_ns = 0;  ///< of this round's latencies; 0 if none was measured
    double p99_ns = 0;
    Disturbance disturbance;
};

/// A short part of a measurement, for the picture of latency and throughput over time.
struct Slice {
    double at_s = 0;     ///< from the beginning of the measurement to the end of the slice; pauses do not count
    double seconds = 0;  ///< its length
    std::uint64_t operations = 0;
    double median_ns = 0;
    double p99_ns = 0;
    double max_ns = 0;
};

/// One operation of one size on one path.
struct Measurement {
    Test test{};
    Op op{};
    PathKind path{};
    QpType transport = QpType::rc;
    std::uint32_t size = 0;  ///< bytes of a message
    std::uint32_t queue_pairs = 1;
    std::uint32_t sessions = 0;  ///< 0 on paths without a worker
    std::uint32_t threads = 1;
    std::uint32_t workers = 0;
    std::uint32_t tx_depth = 1;
    std::uint32_t post_list = 1;
    std::uint32_t signal_every = 1;
    FlowControl flow = FlowControl::off;
    bool inlined = false;
    bool bidirectional = false;
    bool verified = false;  ///< bytes were checked between the operations
    bool yields = false;    ///< the threads give up their CPU while they wait, which the kernel counts as involuntary
    /// If true, the latencies are half round trips, else times from post (or, in an open loop, from the time at which
    /// the request was due) to completion.
    bool half_round_trip = false;

    Histogram latency;       ///< in units of ns_per_unit
    double ns_per_unit = 1;  ///< nanoseconds of the histogram's unit
    std::vector<Round> rounds;
    std::vector<Slice> slices;

    std::uint64_t operations = 0;  ///< that completed in the timed part; a round trip is one
    double seconds = 0;            ///< the timed part, without the pauses between rounds
    std::uint64_t messages = 0;    ///< work requests that this process posted to send queues, also the unsignaled
    std::uint64_t send_doorbells = 0;
    std::uint64_t receive_doorbells = 0;
    std::optional<StageLatency> stages;  ///< of a sample of the requests; only on paths with a worker

    /// What the peer has sent, if the measurement is bidirectional.
    std::uint64_t peer_operations = 0;
    double peer_seconds = 0;
    /// Messages that the receiving ends counted, of `sent`; empty if they count none, as with writes. Fewer than those
    /// when an unreliable transport has lost some.
    std::optional<std::uint64_t> arrived;
    std::uint64_t sent = 0;  ///< messages that were sent to be counted, those of the warm-up included

    // In an open loop only.
    double offered_per_s = 0;       ///< the rate at which requests were due; 0: a closed loop
    std::uint64_t posted_late = 0;  ///< requests that were posted later than one interval after they were due

    [[nodiscard]] double ns(std::uint64_t units) const noexcept { return static_cast<double>(units) * ns_per_unit; }
    [[nodiscard]] double percentile_ns(double fraction) const noexcept { return ns(latency.percentile(fraction)); }
    [[nodiscard]] double operations_per_s() const noexcept {
        return (seconds > 0 ? static_cast<double>(operations) / seconds : 0) +
               (peer_seconds > 0 ? static_cast<double>(peer_operations) / peer_seconds : 0);
    }
    [[nodiscard]] double bytes_per_s() const noexcept { return operations_per_s() * size; }
    [[nodiscard]] double per_message(std::uint64_t count) const noexcept {
        return messages == 0 ? 0 : static_cast<double>(count) / static_cast<double>(messages);
    }
    [[nodiscard]] Disturbance disturbance() const;  ///< of all rounds together
};

/// What is known of a host, for the reader of a report.
struct HostFacts {
    std::string name;
    Machine machine;
    std::string governor;    ///< of CPU frequencies; empty: the kernel does not say
    std::string hypervisor;  ///< empty: none, or unknown
    std::string isolated_cpus;
    std::string clock;  ///< the kernel's clock source
};

struct Results {
    Test test{};
    std::string command;  ///< the command line, as typed
    std::string began;    ///< when, in UTC, as "2026-11-29T07:20:00Z"
    std::string device;   ///< description of the device
    std::string peer;     ///< description of the other end, if it is another process
    std::string memory;   ///< the kind of memory of the runtime's rings and buffers; empty without a runtime
    bool hugepages = false;
    bool verified = false;                                      ///< bytes were checked
    std::vector<std::pair<std::string, std::string>> settings;  ///< name and value of each effective setting
    std::vector<Measurement> measurements;
    std::optional<RoundTrips> round_trip;
    HostFacts host;
    std::optional<HostFacts> peer_host;  ///< of a pollperf server
    std::vector<std::string> warnings;   ///< sentences: what a reader should know before believing the figures

    [[nodiscard]] const Measurement* find(Op op, PathKind path, std::uint32_t size) const noexcept {
        for (const Measurement& one : measurements) {
            if (one.op == op && one.path == path && one.size == size) {
                return &one;
            }
        }
        return nullptr;
    }
};

/// The time that a worker adds to an operation.
struct Hop {
    Op op{};
    std::uint32_t size = 0;
    double direct_ns = 0;
    double worker_ns = 0;  ///< time on path `runtime`, or on path `attached` if `runtime` was not measured
    double difference_ns = 0;
    std::optional<double> round_trips;  ///< difference_ns as a multiple of the raw round trip
    std::optional<double> attached_ns;  ///< time on path `attached`, if `runtime` was measured, too
};
/// The hops of the operations whose latency was measured both by plain verbs (direct or event) and through a worker.
[[nodiscard]] std::vector<Hop> hops(const Results& results);

}  // namespace pollcore::perf
