#include "wake_json.hpp"

#include <nlohmann/json.hpp>

#include "pollcore/version.hpp"

namespace pollcore::perf {
namespace {

using Json = nlohmann::ordered_json;

Json of(const Summary& summary) {
    return {{"min", summary.min},     {"max", summary.max}, {"typical", summary.typical}, {"average", summary.average},
            {"stdev", summary.stdev}, {"p99", summary.p99}, {"p99_9", summary.p999},      {"p99_99", summary.p9999}};
}

}  // namespace

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

}  // namespace pollcore::perf
