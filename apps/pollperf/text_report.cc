#include "text_report.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/clock.hpp"

namespace pollcore::perf {

std::vector<Hop> hops(const LatResults& results) {
    std::vector<Hop> hops;
    for (const Op op : kOps) {
        const PathResult* direct = results.find(op, PathKind::direct);
        direct = direct != nullptr ? direct : results.find(op, PathKind::event);
        const PathResult* runtime = results.find(op, PathKind::runtime);
        const PathResult* attached = results.find(op, PathKind::attached);
        const PathResult* worker = runtime != nullptr ? runtime : attached;
        if (direct == nullptr || worker == nullptr) {
            continue;
        }
        Hop hop{.op = op, .direct_ns = direct->summary.typical, .worker_ns = worker->summary.typical};
        hop.difference_ns = hop.worker_ns - hop.direct_ns;
        if (runtime != nullptr && attached != nullptr) {
            hop.attached_ns = attached->summary.typical;
        }
        if (results.round_trip) {
            hop.round_trips = hop.difference_ns / results.round_trip->typical_ns();
        }
        hops.push_back(hop);
    }
    return hops;
}

namespace {

using Out = std::back_insert_iterator<std::string>;

std::string label(const PathResult& result) {
    return fmt::format("{}, {}", op_name(result.op), path_name(result.path));
}

void title(Out out, const LatOptions& options, const LatResults& results) {
    fmt::format_to(out, "pollperf lat on {}: {}{}\n", options.device,
                   options.role == Role::both     ? "both ends in this process"
                   : options.role == Role::client ? "client of " + options.address + ", "
                                                  : "server of ",
                   options.role == Role::both ? "" : results.peer);
    const bool adds_only = options.ops.size() == 1 && options.ops.front() == Op::fetch_add;
    const bool inlined = std::ranges::any_of(results.paths, &PathResult::inlined);
    fmt::format_to(out, "{} iterations{}{}, {} bytes{}{}\n\n", options.iterations,
                   options.rounds > 1 ? fmt::format(" in {} rounds", options.rounds) : "",
                   options.plain_verbs() + options.runtime + options.attached > 1 ? ", the paths by turns" : "",
                   adds_only ? kAtomicSize : options.size, inlined ? ", inline where they are sent or written" : "",
                   options.verify ? ", every byte checked" : "");
}

void comparison(Out out, const LatOptions& options, const LatResults& results) {
    const auto rows = hops(results);
    if (rows.empty()) {
        return;
    }
    const char* const plain = options.event ? "event" : "direct";
    const bool beside = rows.front().attached_ns.has_value();
    fmt::format_to(out, "{:<16}{:>15}{:>15}{:>15}{:>26}{}\n", "typical latency", plain,
                   options.runtime ? "runtime" : "attached", "difference", "difference / round trip",
                   beside ? fmt::format("{:>15}{:>20}", "attached", "attached / runtime") : "");
    for (const Hop& row : rows) {
        fmt::format_to(
            out, "{:<16}{:>12.0f} ns{:>12.0f} ns{:>+12.0f} ns{:>26}{}\n", op_name(row.op), row.direct_ns, row.worker_ns,
            row.difference_ns, row.round_trips ? fmt::format("{:.2f}", *row.round_trips) : "-",
            beside ? fmt::format("{:>12.0f} ns{:>20.2f}", *row.attached_ns, *row.attached_ns / row.worker_ns) : "");
    }
    fmt::format_to(out, "\n");
    fmt::format_to(out, "  {:<12}plain verbs, called by the application's thread on CPU {}{}\n", plain, options.core,
                   options.event ? ", which sleeps on a completion channel" : "");
    fmt::format_to(out, "  {:<12}through a ring to the worker on CPU {}, and back through another{}\n",
                   options.runtime ? "runtime" : "attached", options.worker_core,
                   options.runtime ? "" : ": the daemon's");
    if (beside) {
        fmt::format_to(out, "  attached    the same worker, through rings that it shares with another process\n");
    }
    fmt::format_to(out, "  difference  what the way over the worker's core costs\n");
    fmt::format_to(out,
                   "  round trip  the cache-line limit: a word to that core and a word back, which no ring beats\n");
    fmt::format_to(out, "  send and write are half of there-and-back, read and fetch-add whole\n\n");
}

void limit(Out out, const LatOptions& options, const LatResults& results) {
    if (!options.own_worker()) {
        return;
    }
    if (options.one_cpu()) {
        fmt::format_to(out, "application and worker take turns on CPU {}: these figures mean little\n\n", options.core);
    } else if (!results.round_trip) {
        fmt::format_to(out, "raw round trip between CPU {} and CPU {}: not known, others kept one of them busy\n\n",
                       options.core, options.worker_core);
    } else {
        const auto& [before, after] = *results.round_trip;
        fmt::format_to(out,
                       "raw round trip between CPU {} and CPU {}: {:.0f} ns (99%: {:.0f} ns), afterwards {:.0f} ns "
                       "(99%: {:.0f} ns)\n\n",
                       before.core, before.other, before.typical_ns, before.p99_ns, after.typical_ns, after.p99_ns);
    }
}

// The columns are perftest's and 99.99%, so that the lines can be compared with perftest's.
void columns(Out out, const LatResults& results) {
    const bool one = results.paths.size() == 1;
    if (!one) {
        fmt::format_to(out, " {:<20}", "");
    }
    fmt::format_to(out, " {:<8}{:<13}{:<14}{:<14}{:<18}{:<14}{:<16}{:<24}{:<26}{}\n", "#bytes", "#iterations",
                   "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]",
                   "99% percentile[usec]", "99.9% percentile[usec]", "99.99% percentile[usec]");
    for (const PathResult& result : results.paths) {
        if (!one) {
            fmt::format_to(out, " {:<20}", label(result));
        }
        const Summary& s = result.summary;
        fmt::format_to(out, " {:<8}{:<13}{:<14.3f}{:<14.3f}{:<18.3f}{:<14.3f}{:<16.3f}{:<24.3f}{:<26.3f}{:.3f}\n",
                       result.size, s.count, s.min / 1e3, s.max / 1e3, s.typical / 1e3, s.average / 1e3, s.stdev / 1e3,
                       s.p99 / 1e3, s.p999 / 1e3, s.p9999 / 1e3);
    }
    if (one) {
        fmt::format_to(out, " {}\n",
                       results.paths.front().half_round_trip
                           ? "times are half of there-and-back"
                           : "times are of the whole operation, up to its completion");
    }
    fmt::format_to(out, "\n");
}

void side_effects(Out out, const LatResults& results) {
    fmt::format_to(out, "{:<20}{:>34}{:>34}{:>24}\n", "while it was timed", "context switches: application", "worker",
                   "doorbells per message");
    fmt::format_to(out, "{:<20}{:>34}{:>34}{:>24}\n", "", "voluntary / involuntary", "voluntary / involuntary",
                   "send / receive");
    const auto switches = [](const ContextSwitches& taken) {
        return fmt::format("{} / {}", taken.voluntary, taken.involuntary);
    };
    for (const PathResult& result : results.paths) {
        fmt::format_to(out, "{:<20}{:>34}{:>34}{:>24}\n", label(result), switches(result.application),
                       result.worker ? switches(*result.worker) : "-",
                       fmt::format("{:.2f} / {:.2f}", result.per_message(result.send_doorbells),
                                   result.per_message(result.receive_doorbells)));
    }
    fmt::format_to(out, "\n");
}

// How the time of a request is divided among its stages. Sessions measure this for a sample of the requests.
void stages(Out out, const LatResults& results) {
    if (std::ranges::none_of(results.paths, [](const PathResult& result) { return result.stages.has_value(); })) {
        return;
    }
    fmt::format_to(out, "{:<20}{:>26}{:>26}{:>26}{:>12}\n", "one request in " + std::to_string(kLatencySampleEvery),
                   "submission ring", "device", "completion ring", "followed");
    fmt::format_to(out, "{:<20}{:>26}{:>26}{:>26}\n", "", "median / 99% ns", "median / 99% ns", "median / 99% ns");
    const auto figures = [](const LatencyHistogram& histogram) {
        const auto ns = [&](double fraction) {
            return static_cast<double>(histogram.percentile(fraction)) / cycles_per_ns();
        };
        return histogram.count() == 0 ? std::string("-") : fmt::format("{:.0f} / {:.0f}", ns(0.5), ns(0.99));
    };
    for (const PathResult& result : results.paths) {
        if (result.stages) {
            fmt::format_to(out, "{:<20}{:>26}{:>26}{:>26}{:>12}\n", label(result),
                           figures(result.stages->submission_ring), figures(result.stages->device),
                           figures(result.stages->completion_ring), result.stages->submission_ring.count());
        }
    }
    fmt::format_to(out, "\n");
}

// Checks that the samples add up to the wall time. A stamp that is taken at the wrong moment loses time, or counts time
// twice.
void check_stamps(Out out, const LatOptions& options, const LatResults& results) {
    for (const PathResult& result : results.paths) {
        const double share = result.wall_ns > 0 ? result.samples_sum_ns / result.wall_ns : 1;
        // With --verify, the checks take time between the samples. A short run consists mostly of its beginning and
        // end.
        const bool comparable = !options.verify && options.role != Role::server && result.wall_ns > 5e6;
        if (share > 1.01 || (comparable && share < 0.97)) {
            fmt::format_to(out,
                           "warning: {}: the samples add up to {:.1f}% of the time that passed; do not trust them\n",
                           label(result), 100 * share);
        }
    }
}

void ran_on(Out out, const LatOptions& options, const LatResults& results) {
    std::uint64_t steal = 0;
    for (const PathResult& result : results.paths) {
        steal += result.steal_ms;
    }
    fmt::format_to(out, "ran on\n");
    fmt::format_to(out, "  machine   {}, {} CPUs, {}{}\n", results.machine.cpu_model, results.machine.cpus_online,
                   results.machine.kernel,
                   steal > 0 ? fmt::format("; its hypervisor gave {} ms of the timed part to others", steal) : "");
    fmt::format_to(out, "  threads   application on CPU {}{}\n", options.core,
                   options.has_worker()
                       ? fmt::format(", worker '{}' on CPU {}{}", options.worker, options.worker_core,
                                     options.config.workers.empty()
                                         ? ""
                                         : ", which waits by " + options.config.workers.front().idle.describe())
                       : "");
    if (options.flow != FlowControl::off) {
        fmt::format_to(out, "  flow      by {}\n", flow_control_text(options.flow));
    }
    fmt::format_to(out, "  device    {}\n", results.device);
    if (!results.peer.empty()) {
        fmt::format_to(out, "  peer      {}\n", results.peer);
    }
    if (!options.attach.empty()) {
        fmt::format_to(out, "  attached  to the daemon at {}\n", options.attach);
    }
    if (options.has_worker()) {
        fmt::format_to(out, "  memory    {}\n", results.memory);
    }
}

struct Column {
    PathKind path{};
    const char* first = nullptr;   ///< first line of the heading
    const char* second = nullptr;  ///< second line of the heading
};

const char* plain_words(Op op) noexcept {
    switch (op) {
        case Op::send: return "send a message";
        case Op::write: return "write to the peer's memory";
        case Op::read: return "read from the peer's memory";
        case Op::fetch_add: return "add to a number there";
    }
    return "?";
}

}  // namespace

std::string brief_report(const LatOptions& options, const LatResults& results) {
    std::string text;
    const Out out = std::back_inserter(text);
    std::vector<Column> columns;
    for (const Column& column :
         {Column{PathKind::direct, "by verbs, on the", "thread itself"},
          Column{PathKind::event, "by verbs, on a", "thread that sleeps"},
          Column{PathKind::runtime, "through a worker", options.one_cpu() ? "by turns" : "on another CPU"},
          Column{PathKind::attached, "from another process", "through that worker"}}) {
        if (std::ranges::any_of(results.paths, [&](const PathResult& result) { return result.path == column.path; })) {
            columns.push_back(column);
        }
    }
    const auto line = [&](std::string_view name, auto&& cell) {
        fmt::format_to(out, "{:<28}", name);
        for (const Column& column : columns) {
            fmt::format_to(out, "{:>22}", cell(column));
        }
        fmt::format_to(out, "\n");
    };
    const bool software = options.config.devices.front().kind == DeviceConfig::Kind::soft;
    fmt::format_to(out, "One operation at a time, of {} bytes, on {}:\n\n", options.size,
                   software ? "a device in software" : results.device);
    line("", [](const Column& column) { return column.first; });
    line("", [](const Column& column) { return column.second; });
    for (const Op op : options.ops) {
        line(plain_words(op), [&](const Column& column) {
            const PathResult* result = results.find(op, column.path);
            return result == nullptr ? std::string("-") : fmt::format("{:.0f} ns", result->summary.typical);
        });
    }
    line("the thread slept, times", [&](const Column& column) {
        std::uint64_t slept = 0;
        for (const PathResult& result : results.paths) {
            slept += result.path == column.path ? result.application.voluntary : 0;
        }
        return fmt::format("{}", slept);
    });
    const std::vector<Hop> rows = hops(results);
    if (options.one_cpu()) {
        fmt::format_to(
            out, "\nThis process has one CPU: thread and worker take turns on it, and the figures mean little.\n");
    } else if (!rows.empty()) {
        double most = 0;
        for (const Hop& row : rows) {
            most = std::max(most, row.difference_ns);
        }
        fmt::format_to(out,
                       "\nAn operation goes from CPU {} to the worker's CPU {} and back, up to {:.0f} ns more here,\n"
                       "for which threads and processes share the device without a lock.\n",
                       options.core, options.worker_core, most);
    }
    return text;
}

std::string report(const LatOptions& options, const LatResults& results) {
    std::string text;
    const Out out = std::back_inserter(text);
    title(out, options, results);
    comparison(out, options, results);
    limit(out, options, results);
    if (!results.paths.empty()) {
        columns(out, results);
        side_effects(out, results);
        stages(out, results);
        check_stamps(out, options, results);
    } else {
        fmt::format_to(out, "the client did its operations and left; its report has the figures\n\n");
    }
    ran_on(out, options, results);
    return text;
}

}  // namespace pollcore::perf
