#include "pollperf/report/csv.hpp"

#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pollperf/report/intervals.hpp"

namespace pollcore::perf {
namespace {

std::string csv_field(std::string_view text) {
    if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
        return std::string(text);
    }
    std::string field = "\"";
    for (const char c : text) {
        field.append(c == '"' ? 2 : 1, c);
    }
    return field + '"';
}

std::string decimal(double number, int places = 3) {
    return fmt::format("{:.{}f}", number, places);
}

using Fields = std::vector<std::pair<std::string_view, std::string>>;

// All columns of a line, in their order. The names do not depend on the measurement.
Fields fields(const Results& results, const Measurement& one) {
    const bool sampled = one.latency.count() != 0;
    const auto percentile = [&](double fraction) { return sampled ? decimal(one.percentile_ns(fraction)) : ""; };
    const auto ns = [&](double units) { return sampled ? decimal(units * one.ns_per_unit) : ""; };
    const bool open_loop = one.offered_per_s > 0;
    const auto interval = bootstrap_median(round_values(one));
    const Disturbance noise = one.disturbance();
    const auto frequency = [](double mhz) { return mhz > 0 ? decimal(mhz) : ""; };
    return {
        {"test", std::string(test_name(one.test))},
        {"op", std::string(op_name(one.op))},
        {"path", std::string(path_name(one.path))},
        {"transport", std::string(transport_name(one.transport))},
        {"bytes", fmt::to_string(one.size)},
        {"queue_pairs", fmt::to_string(one.queue_pairs)},
        {"sessions", fmt::to_string(one.sessions)},
        {"threads", fmt::to_string(one.threads)},
        {"workers", fmt::to_string(one.workers)},
        {"tx_depth", fmt::to_string(one.tx_depth)},
        {"post_list", fmt::to_string(one.post_list)},
        {"signal_every", fmt::to_string(one.signal_every)},
        {"flow", std::string(flow_control_name(one.flow))},
        {"verified", one.verified ? "1" : "0"},
        {"inline", one.inlined ? "1" : "0"},
        {"bidirectional", one.bidirectional ? "1" : "0"},
        {"half_round_trip", one.half_round_trip ? "1" : "0"},
        {"iterations", fmt::to_string(one.latency.count())},
        {"min_ns", ns(static_cast<double>(one.latency.least()))},
        {"max_ns", ns(static_cast<double>(one.latency.greatest()))},
        {"typical_ns", percentile(0.5)},
        {"average_ns", ns(one.latency.average())},
        {"stdev_ns", ns(one.latency.deviation())},
        {"p99_ns", percentile(0.99)},
        {"p99_9_ns", percentile(0.999)},
        {"p99_99_ns", percentile(0.9999)},
        {"p99_999_ns", percentile(0.99999)},
        {"p99_9999_ns", percentile(0.999999)},
        {"operations", fmt::to_string(one.operations)},
        {"seconds", decimal(one.seconds, 9)},
        {"operations_per_s", decimal(one.operations_per_s())},
        {"bytes_per_s", decimal(one.bytes_per_s())},
        {"peer_operations", one.bidirectional ? fmt::to_string(one.peer_operations) : ""},
        {"peer_seconds", one.bidirectional ? decimal(one.peer_seconds, 9) : ""},
        {"sent", one.arrived ? fmt::to_string(one.sent) : ""},
        {"arrived", one.arrived ? fmt::to_string(*one.arrived) : ""},
        {"offered_per_s", open_loop ? decimal(one.offered_per_s) : ""},
        {"posted_late", open_loop ? fmt::to_string(one.posted_late) : ""},
        {"rounds", fmt::to_string(one.rounds.size())},
        {"interval_of", interval ? std::string(figure_name(main_figure(one))) : ""},
        {"interval_low", interval ? decimal(interval->low) : ""},
        {"interval_median", interval ? decimal(interval->median) : ""},
        {"interval_high", interval ? decimal(interval->high) : ""},
        {"messages", fmt::to_string(one.messages)},
        {"send_doorbells", fmt::to_string(one.send_doorbells)},
        {"receive_doorbells", fmt::to_string(one.receive_doorbells)},
        {"application_voluntary_switches", fmt::to_string(noise.application.voluntary)},
        {"application_involuntary_switches", fmt::to_string(noise.application.involuntary)},
        {"worker_voluntary_switches", noise.worker ? fmt::to_string(noise.worker->voluntary) : ""},
        {"worker_involuntary_switches", noise.worker ? fmt::to_string(noise.worker->involuntary) : ""},
        {"steal_ms", fmt::to_string(noise.steal_ms)},
        {"migrations", fmt::to_string(noise.migrations)},
        {"frequency_low_mhz", frequency(noise.frequency_low_mhz)},
        {"frequency_high_mhz", frequency(noise.frequency_high_mhz)},
        {"began", csv_field(results.began)},
        {"host", csv_field(results.host.name)},
        {"device", csv_field(results.device)},
    };
}

}  // namespace

std::string csv(const Results& results) {
    std::string text;
    const auto line = [&](const Fields& row, bool names) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            text.append(i == 0 ? "" : ",").append(names ? row[i].first : row[i].second);
        }
        text += "\r\n";
    };
    line(fields(results, {}), true);
    for (const Measurement& one : results.measurements) {
        line(fields(results, one), false);
    }
    return text;
}

}  // namespace pollcore::perf
