#include "json_report.hpp"

#include <cerrno>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "pollcore/error.hpp"
#include "pollcore/version.hpp"

namespace pollcore::perf {
namespace {

using Json = nlohmann::ordered_json;

Json of(const ContextSwitches& switches) {
    return {{"voluntary", switches.voluntary}, {"involuntary", switches.involuntary}};
}

Json of(const Summary& summary) {
    return {{"min", summary.min},     {"max", summary.max}, {"typical", summary.typical}, {"average", summary.average},
            {"stdev", summary.stdev}, {"p99", summary.p99}, {"p99_9", summary.p999},      {"p99_99", summary.p9999}};
}

Json of(const LatencyHistogram& histogram) {
    const auto ns = [&](double fraction) {
        return static_cast<double>(histogram.percentile(fraction)) / cycles_per_ns();
    };
    return {{"samples", histogram.count()}, {"median", ns(0.5)}, {"p99", ns(0.99)}};
}

Json of(const PathResult& result) {
    Json json = {{"op", op_name(result.op)},
                 {"path", path_name(result.path)},
                 {"bytes", result.size},
                 {"iterations", result.summary.count},
                 {"inline", result.inlined},
                 {"half_round_trip", result.half_round_trip},
                 {"latency_ns", of(result.summary)},
                 {"wall_ns", result.wall_ns},
                 {"samples_sum_ns", result.samples_sum_ns},
                 {"messages", result.messages},
                 {"doorbells", {{"send", result.send_doorbells}, {"receive", result.receive_doorbells}}},
                 {"context_switches", {{"application", of(result.application)}}},
                 {"steal_ms", result.steal_ms}};
    if (result.worker) {
        json["context_switches"]["worker"] = of(*result.worker);
    }
    if (result.stages) {
        json["stages_ns"] = {{"submission_ring", of(result.stages->submission_ring)},
                             {"device", of(result.stages->device)},
                             {"completion_ring", of(result.stages->completion_ring)}};
    }
    return json;
}

Json of(const RoundTrip& trip) {
    return {{"typical", trip.typical_ns}, {"p99", trip.p99_ns}};
}

Json of(const Hop& hop) {
    Json json = {{"op", op_name(hop.op)},
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

}  // namespace

std::string json_report(const LatOptions& options, const LatResults& results) {
    const char* role = options.role == Role::both ? "both" : options.role == Role::client ? "client" : "server";
    Json json = {{"program", "pollperf lat"}, {"version", POLLCORE_VERSION}, {"format", 1}};
    json["options"] = {{"role", role},
                       {"device", options.device},
                       {"bytes", options.size},
                       {"iterations", options.iterations},
                       {"warmup", options.warmup},
                       {"rounds", options.rounds},
                       {"verify", options.verify},
                       {"flow", flow_control_name(options.flow)},
                       {"application_cpu", options.core}};
    if (options.has_worker()) {
        json["options"]["worker_cpu"] = options.worker_core;
    }
    if (results.round_trip) {
        const auto& [before, after] = *results.round_trip;
        json["round_trip_ns"] = {{"typical", results.round_trip->typical_ns()},
                                 {"before", of(before)},
                                 {"after", of(after)},
                                 {"cpus", {before.core, before.other}}};
    }
    json["results"] = Json::array();
    for (const PathResult& result : results.paths) {
        json["results"].push_back(of(result));
    }
    json["hops"] = Json::array();
    for (const Hop& hop : hops(results)) {
        json["hops"].push_back(of(hop));
    }
    json["machine"] = {{"cpu", results.machine.cpu_model},
                       {"cpus_online", results.machine.cpus_online},
                       {"kernel", results.machine.kernel}};
    json["device"] = results.device;
    if (!results.peer.empty()) {
        json["peer"] = results.peer;
    }
    if (options.has_worker()) {
        json["memory"] = {{"hugepages", results.hugepages}, {"description", results.memory}};
    }
    return json.dump(2) + "\n";
}

std::string json_report(const WakeOptions& options, const WakeResults& results) {
    const auto of_row = [](const WakeRow& row) {
        Json json = {{"how", row.how}, {"iterations", row.latency.count}, {"latency_ns", of(row.latency)}};
        if (row.cpu) {
            json["cpu"] = *row.cpu;
            json["cpu_idle"] = *row.cpu_idle;
            json["full_load_per_s"] = *row.full_load;
        }
        return json;
    };
    Json json = {{"program", "pollperf wake"}, {"version", POLLCORE_VERSION}, {"format", 1}};
    json["options"] = {{"device", options.device.name},   {"iterations", options.iterations},
                       {"rounds", options.rounds},        {"gap_us", options.gap.count()},
                       {"application_cpu", options.core}, {"worker_cpu", options.worker_core}};
    json["worker"] = Json::array();
    for (const WakeRow& row : results.workers) {
        json["worker"].push_back(of_row(row));
    }
    json["bare_worker"] = of_row(results.bare_worker);
    json["application"] = of_row(results.application);
    json["bare_application"] = of_row(results.bare_application);
    if (const auto ratio = results.worker_ratio()) {
        json["worker_ratio"] = *ratio;
    }
    json["application_ratio"] = results.application_ratio();
    json["machine"] = {{"cpu", results.machine.cpu_model},
                       {"cpus_online", results.machine.cpus_online},
                       {"kernel", results.machine.kernel},
                       {"steal_ms", results.steal_ms}};
    return json.dump(2) + "\n";
}

void write_json(const std::filesystem::path& file, const std::string& report) {
    std::ofstream out(file, std::ios::trunc);
    out << report;
    out.close();
    if (!out) {
        throw Error(errno != 0 ? errno : EIO, fmt::format("writing the figures to {} (--json)", file.string()));
    }
}

}  // namespace pollcore::perf
