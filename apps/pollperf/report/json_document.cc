#include "pollperf/report/json_document.hpp"

#include <fmt/format.h>

#include "pollcore/cycles.hpp"
#include "pollcore/version.hpp"
#include "pollperf/report/intervals.hpp"

namespace pollcore::perf {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson as_json(const ContextSwitches& switches) {
    return {{"voluntary", switches.voluntary}, {"involuntary", switches.involuntary}};
}

OrderedJson as_json(const RoundTrip& trip) {
    return {{"typical", trip.typical_ns}, {"p99", trip.p99_ns}};
}

// A stage's histogram counts cycles of the time stamp counter.
OrderedJson as_json(const LatencyHistogram& stage) {
    const auto ns = [&](double fraction) { return static_cast<double>(stage.percentile(fraction)) / cycles_per_ns(); };
    return {{"samples", stage.count()}, {"median", ns(0.5)}, {"p99", ns(0.99)}};
}

OrderedJson as_json(const Round& round) {
    return {{"seconds", round.seconds},
            {"operations", round.operations},
            {"median_ns", round.median_ns},
            {"p99_ns", round.p99_ns},
            {"steal_ms", round.disturbance.steal_ms},
            {"migrations", round.disturbance.migrations},
            {"frequency_low_mhz", round.disturbance.frequency_low_mhz},
            {"frequency_high_mhz", round.disturbance.frequency_high_mhz}};
}

OrderedJson as_json(const Slice& slice) {
    return {{"at_s", slice.at_s},           {"seconds", slice.seconds}, {"operations", slice.operations},
            {"median_ns", slice.median_ns}, {"p99_ns", slice.p99_ns},   {"max_ns", slice.max_ns}};
}

OrderedJson as_json(const Hop& hop) {
    OrderedJson json = {{"op", op_name(hop.op)},
                        {"bytes", hop.size},
                        {"direct_ns", hop.direct_ns},
                        {"runtime_ns", hop.worker_ns},
                        {"difference_ns", hop.difference_ns}};
    if (hop.attached_ns) {
        json["attached_ns"] = *hop.attached_ns;
    }
    if (hop.round_trips) {
        json["difference_round_trips"] = *hop.round_trips;
    }
    return json;
}

OrderedJson latencies(const Measurement& one) {
    return {{"min", one.ns(one.latency.least())},
            {"max", one.ns(one.latency.greatest())},
            {"typical", one.percentile_ns(0.5)},
            {"average", one.latency.average() * one.ns_per_unit},
            {"stdev", one.latency.deviation() * one.ns_per_unit},
            {"p99", one.percentile_ns(0.99)},
            {"p99_9", one.percentile_ns(0.999)},
            {"p99_99", one.percentile_ns(0.9999)},
            {"p99_999", one.percentile_ns(0.99999)},
            {"p99_9999", one.percentile_ns(0.999999)}};
}

OrderedJson as_json(const Measurement& one);

template <class Range>
OrderedJson as_array(const Range& range) {
    OrderedJson array = OrderedJson::array();
    for (const auto& one : range) {
        array.push_back(as_json(one));
    }
    return array;
}

OrderedJson as_json(const Measurement& one) {
    OrderedJson json = {{"op", op_name(one.op)},
                        {"path", path_name(one.path)},
                        {"transport", transport_name(one.transport)},
                        {"bytes", one.size},
                        {"queue_pairs", one.queue_pairs},
                        {"sessions", one.sessions},
                        {"threads", one.threads},
                        {"workers", one.workers},
                        {"tx_depth", one.tx_depth},
                        {"post_list", one.post_list},
                        {"signal_every", one.signal_every},
                        {"flow", flow_control_name(one.flow)},
                        {"verified", one.verified},
                        {"inline", one.inlined},
                        {"bidirectional", one.bidirectional},
                        {"half_round_trip", one.half_round_trip},
                        {"iterations", one.latency.count()}};
    if (one.latency.count() != 0) {
        json["latency_ns"] = latencies(one);
    }
    json["histogram_ns"] = OrderedJson::array();
    one.latency.for_each([&](std::uint64_t greatest, std::uint64_t samples) {
        json["histogram_ns"].push_back({one.ns(greatest), samples});
    });
    json["operations"] = one.operations;
    json["seconds"] = one.seconds;
    json["operations_per_s"] = one.operations_per_s();
    json["bytes_per_s"] = one.bytes_per_s();
    if (one.bidirectional) {
        json["peer_operations"] = one.peer_operations;
        json["peer_seconds"] = one.peer_seconds;
    }
    if (one.arrived) {
        json["sent"] = one.sent;
        json["arrived"] = *one.arrived;
    }
    if (one.offered_per_s > 0) {
        json["offered_per_s"] = one.offered_per_s;
        json["posted_late"] = one.posted_late;
    }
    if (const auto interval = bootstrap_median(round_values(one))) {
        json["interval"] = {{"of", figure_name(main_figure(one))},
                            {"low", interval->low},
                            {"median", interval->median},
                            {"high", interval->high}};
    }
    json["rounds"] = as_array(one.rounds);
    json["over_time"] = as_array(one.slices);
    if (one.stages) {
        json["stages_ns"] = {{"submission_ring", as_json(one.stages->submission_ring)},
                             {"device", as_json(one.stages->device)},
                             {"completion_ring", as_json(one.stages->completion_ring)}};
    }
    json["messages"] = one.messages;
    json["doorbells"] = {{"send", one.send_doorbells}, {"receive", one.receive_doorbells}};
    const Disturbance disturbance = one.disturbance();
    json["context_switches"] = {{"application", as_json(disturbance.application)}};
    if (disturbance.worker) {
        json["context_switches"]["worker"] = as_json(*disturbance.worker);
    }
    json["steal_ms"] = disturbance.steal_ms;
    json["migrations"] = disturbance.migrations;
    return json;
}

}  // namespace

nlohmann::ordered_json host_json(const HostFacts& host) {
    return {{"name", host.name},
            {"cpu", host.machine.cpu_model},
            {"cpus_online", host.machine.cpus_online},
            {"kernel", host.machine.kernel},
            {"governor", host.governor},
            {"hypervisor", host.hypervisor},
            {"isolated_cpus", host.isolated_cpus},
            {"clock", host.clock}};
}

nlohmann::ordered_json to_json(const Results& results) {
    OrderedJson json = {{"program", fmt::format("pollperf {}", test_name(results.test))},
                        {"version", POLLCORE_VERSION},
                        {"format", kJsonFormat},
                        {"command", results.command},
                        {"began", results.began}};
    json["settings"] = OrderedJson::object();
    for (const auto& [name, value] : results.settings) {
        json["settings"][name] = value;
    }
    json["host"] = host_json(results.host);
    if (results.peer_host) {
        json["peer_host"] = host_json(*results.peer_host);
    }
    json["device"] = results.device;
    if (!results.peer.empty()) {
        json["peer"] = results.peer;
    }
    if (!results.memory.empty()) {
        json["memory"] = {{"hugepages", results.hugepages}, {"description", results.memory}};
    }
    json["verified"] = results.verified;
    if (results.round_trip) {
        const auto& [before, after] = *results.round_trip;
        json["round_trip_ns"] = {{"typical", results.round_trip->typical_ns()},
                                 {"before", as_json(before)},
                                 {"after", as_json(after)},
                                 {"cpus", {before.core, before.other}}};
    }
    json["results"] = as_array(results.measurements);
    json["hops"] = as_array(hops(results));
    json["warnings"] = results.warnings;
    return json;
}

std::string json_text(const Results& results) {
    return to_json(results).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace pollcore::perf
