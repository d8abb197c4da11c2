#include "pollperf/report/text_report.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "pollcore/cycles.hpp"
#include "pollperf/report/intervals.hpp"

namespace pollcore::perf {
namespace {

using TextOut = std::back_insert_iterator<std::string>;

// ---- Text ----

// With as many decimals, up to three, as a column of this width has room for beside a space.
std::string fit(double value, std::size_t width, int decimals = 3) {
    std::string text = fmt::format("{:.{}f}", value, decimals);
    while (text.size() >= width && decimals > 0) {
        text = fmt::format("{:.{}f}", value, --decimals);
    }
    return text;
}

std::string ns_text(double ns, const char* sign = "") {
    const bool long_time = std::abs(ns) >= 1e6;
    const std::string number =
        long_time ? fmt::format("{:.2f} ms", std::abs(ns) / 1e6) : fmt::format("{:.0f} ns", std::abs(ns));
    return (ns < 0 ? "-" : sign) + number;
}

std::string switches_text(const ContextSwitches& taken) {
    return fmt::format("{} / {}", taken.voluntary, taken.involuntary);
}

const std::string* setting(const Results& results, std::string_view name) {
    const auto found = std::ranges::find(results.settings, name, &std::pair<std::string, std::string>::first);
    return found == results.settings.end() ? nullptr : &found->second;
}

/// A column of a table: its width and its heading.
struct TextColumn {
    std::size_t width;
    const char* heading;
    std::function<std::string(const Measurement&)> cell;
};

// ---- Where it ran ----

/// The CPUs of the application's thread and of the worker, as text; empty: unknown.
struct ThreadCpus {
    std::string application;
    std::string worker;

    [[nodiscard]] bool known() const { return !application.empty() && !worker.empty(); }
    [[nodiscard]] bool shared() const { return known() && application == worker; }
};

ThreadCpus thread_cpus(const Results& results) {
    ThreadCpus cpus;
    if (const std::string* core = setting(results, "core")) {
        cpus.application = *core;
    } else if (results.round_trip) {
        cpus.application = fmt::to_string(results.round_trip->before.core);
    }
    if (const std::string* core = setting(results, "worker-core")) {
        cpus.worker = *core;
    } else if (results.round_trip) {
        cpus.worker = fmt::to_string(results.round_trip->before.other);
    }
    return cpus;
}

bool has_path(const Results& results, PathKind path) {
    return std::ranges::any_of(results.measurements, [&](const Measurement& one) { return one.path == path; });
}

std::size_t label_width(const Results& results) {
    std::size_t width = 20;
    for (const Measurement& one : results.measurements) {
        width = std::max(width, label(one).size() + 2);
    }
    return width;
}

// ---- The parts of the report ----

void title(std::string& text, const Results& results) {
    wrap(text, "", fmt::format("pollperf {} on {}", test_name(results.test), results.device));
    if (!results.command.empty()) {
        wrap(text, "  command   ", results.command);
    }
    std::string settings;
    for (const auto& [name, value] : results.settings) {
        settings += fmt::format("{}{} {}", settings.empty() ? "" : ", ", name, value);
    }
    if (results.verified) {
        settings += fmt::format("{}bytes checked", settings.empty() ? "" : ", ");
    }
    if (!settings.empty()) {
        wrap(text, "  settings  ", settings);
    }
    text += "\n";
}

void comparison(std::string& text, const Results& results) {
    const std::vector<Hop> rows = hops(results);
    if (rows.empty()) {
        return;
    }
    const TextOut out = std::back_inserter(text);
    const char* const plain = has_path(results, PathKind::direct) ? "direct" : "event";
    const char* const worker = has_path(results, PathKind::runtime) ? "runtime" : "attached";
    const bool beside = rows.front().attached_ns.has_value();
    fmt::format_to(out, "{:<28}{:>12}{:>12}{:>12}{:>14}{}\n", "typical latency", plain, worker, "difference",
                   "/ round trip", beside ? fmt::format("{:>12}{:>12}", "attached", "/ runtime") : "");
    for (const Hop& row : rows) {
        const std::string times = row.round_trips ? fmt::format("{:.2f}", *row.round_trips) : "-";
        fmt::format_to(out, "{:<28}{:>12}{:>12}{:>12}{:>14}", fmt::format("{}, {} bytes", op_name(row.op), row.size),
                       ns_text(row.direct_ns), ns_text(row.worker_ns), ns_text(row.difference_ns, "+"), times);
        if (row.attached_ns) {
            fmt::format_to(out, "{:>12}{:>12.2f}", ns_text(*row.attached_ns),
                           row.worker_ns > 0 ? *row.attached_ns / row.worker_ns : 0);
        }
        fmt::format_to(out, "\n");
    }
    fmt::format_to(out, "\n");
    const ThreadCpus cpus = thread_cpus(results);
    const auto on_cpu = [](const std::string& cpu) { return cpu.empty() ? "" : " on CPU " + cpu; };
    const bool sleeps = plain == std::string_view("event");
    wrap(text, fmt::format("  {:<12}", plain),
         fmt::format("plain verbs, called by the application's thread{}{}", on_cpu(cpus.application),
                     sleeps ? ", which sleeps on a completion channel" : ""));
    wrap(text, fmt::format("  {:<12}", worker),
         fmt::format("through a ring to the worker{}, and back through another", on_cpu(cpus.worker)));
    if (beside) {
        wrap(text, "  attached    ", "the same worker, through rings that it shares with another process");
    }
    fmt::format_to(out, "  difference  what the way over the worker's core costs\n");
    fmt::format_to(out,
                   "  round trip  the cache-line limit: a word to that core and a word back, which no ring beats\n\n");
}

void limit(std::string& text, const Results& results) {
    const ThreadCpus cpus = thread_cpus(results);
    if (cpus.shared()) {
        wrap(text, "",
             fmt::format("application and worker take turns on CPU {}: these figures mean little", cpus.application));
    } else if (results.round_trip) {
        const auto& [before, after] = *results.round_trip;
        wrap(text, "",
             fmt::format("raw round trip between CPU {} and CPU {}: {:.0f} ns (99%: {:.0f} ns), afterwards {:.0f} ns "
                         "(99%: {:.0f} ns)",
                         before.core, before.other, before.typical_ns, before.p99_ns, after.typical_ns, after.p99_ns));
    } else if (results.test == Test::lat && has_path(results, PathKind::runtime) && cpus.known()) {
        wrap(text, "",
             fmt::format("raw round trip between CPU {} and CPU {}: not known, others kept one of them busy",
                         cpus.application, cpus.worker));
    } else {
        return;
    }
    text += "\n";
}

const char* meaning_of_times(const Measurement& one) {
    if (one.half_round_trip) {
        return "times are half of there-and-back";
    }
    return one.offered_per_s > 0 ? "times are from when an operation was due to its completion"
                                 : "times are of the whole operation, from its post to its completion";
}

std::string microseconds(const Measurement& one, double fraction, std::size_t width) {
    return one.latency.count() == 0 ? "-" : fit(one.percentile_ns(fraction) / 1e3, width);
}

bool in_gigabits(const Results& results) {
    const std::string* const wanted = setting(results, "report_gbits");
    return wanted != nullptr && *wanted == "yes";
}

// perftest's units: Gb/sec has 10^9 bits, MB/sec 2^20 bytes.
double bandwidth(double bytes_per_s, bool gigabits) {
    return gigabits ? bytes_per_s * 8 / 1e9 : bytes_per_s / (1 << 20);
}

// The best round, or the average if there are no rounds.
double peak(const Measurement& one, double average) {
    const std::vector<double> rounds = round_values(one);
    return rounds.empty() ? average : *std::ranges::max_element(rounds);
}

// A column with the lost messages, if a receiving end of these measurements counts.
void add_lost(std::vector<TextColumn>& columns, const std::vector<const Measurement*>& rows) {
    if (std::ranges::none_of(rows, [](const Measurement* one) { return one->arrived.has_value(); })) {
        return;
    }
    columns.push_back({8, "lost", [](const Measurement& one) {
                           return one.arrived ? fmt::to_string(one.sent - std::min(*one.arrived, one.sent))
                                              : std::string("-");
                       }});
}

// The columns are perftest's and some more, so that the lines can be compared with perftest's. A script finds the size
// in field 1, and in field 5 the typical latency or the message rate, as with perftest.
std::vector<TextColumn> columns_of(const Results& results, const std::vector<const Measurement*>& rows) {
    const auto size = [](const Measurement& one) { return fmt::to_string(one.size); };
    const auto operations = [](const Measurement& one) { return fmt::to_string(one.operations); };
    const auto rate = [](double per_s) { return fit(per_s / 1e6, 15, 6); };
    const auto percentile = [](std::size_t width, const char* heading, double fraction) {
        return TextColumn{width, heading, [=](const Measurement& one) { return microseconds(one, fraction, width); }};
    };
    std::vector<TextColumn> columns;
    if (results.test == Test::lat) {
        const auto of_units = [](std::size_t width, const char* heading, double (*units)(const Histogram&)) {
            return TextColumn{width, heading, [=](const Measurement& one) {
                                  return one.latency.count() == 0
                                             ? std::string("-")
                                             : fit(units(one.latency) * one.ns_per_unit / 1e3, width);
                              }};
        };
        columns = {
            {8, "#bytes", size},
            {12, "#iterations", [](const Measurement& one) { return fmt::to_string(one.latency.count()); }},
            of_units(12, "t_min[usec]", [](const Histogram& h) { return static_cast<double>(h.least()); }),
            of_units(12, "t_max[usec]", [](const Histogram& h) { return static_cast<double>(h.greatest()); }),
            percentile(16, "t_typical[usec]", 0.5),
            of_units(12, "t_avg[usec]", [](const Histogram& h) { return h.average(); }),
            of_units(14, "t_stdev[usec]", [](const Histogram& h) { return h.deviation(); }),
            percentile(11, "99%", 0.99),
            percentile(11, "99.9%", 0.999),
            percentile(11, "99.99%", 0.9999),
        };
    } else if (results.test == Test::bw) {
        const bool gigabits = in_gigabits(results);
        const auto shown = [=](double bytes_per_s) { return fit(bandwidth(bytes_per_s, gigabits), 17, 2); };
        columns = {
            {11, "#bytes", size},
            {14, "#iterations", operations},
            {17, gigabits ? "BW_peak[Gb/sec]" : "BW_peak[MB/sec]",
             [=](const Measurement& one) { return shown(peak(one, one.bytes_per_s())); }},
            {20, gigabits ? "BW_average[Gb/sec]" : "BW_average[MB/sec]",
             [=](const Measurement& one) { return shown(one.bytes_per_s()); }},
            {15, "MsgRate[Mpps]", [=](const Measurement& one) { return rate(one.operations_per_s()); }},
            percentile(14, "median[usec]", 0.5),
            percentile(14, "99%[usec]", 0.99),
        };
        add_lost(columns, rows);
    } else {
        columns = {
            {8, "#bytes", size},
            {13, "#iterations", operations},
            {19, "MsgRate_peak[Mpps]", [=](const Measurement& one) { return rate(peak(one, one.operations_per_s())); }},
            {17, "messages/sec", [](const Measurement& one) { return fmt::format("{:.0f}", one.operations_per_s()); }},
            {15, "MsgRate[Mpps]", [=](const Measurement& one) { return rate(one.operations_per_s()); }},
            percentile(13, "median[usec]", 0.5),
            percentile(11, "99%[usec]", 0.99),
            percentile(12, "99.9%[usec]", 0.999),
        };
        add_lost(columns, rows);
    }
    return columns;
}

// The measurements of one operation and path, which differ in their size or their load.
void table(std::string& text, const Results& results, const std::vector<const Measurement*>& rows) {
    const TextOut out = std::back_inserter(text);
    const Measurement& first = *rows.front();
    fmt::format_to(out, "{}, {}{}{}: {}\n", op_name(first.op), path_name(first.path),
                   first.transport == QpType::rc ? "" : fmt::format(", {}", transport_name(first.transport)),
                   first.bidirectional ? ", both directions together" : "", meaning_of_times(first));
    const std::vector<TextColumn> columns = columns_of(results, rows);
    // A cell that is wider than its column moves the next ones only as far as it must.
    const auto line = [&](auto&& cell) {
        std::string cells;
        std::size_t begin = 1;
        for (const TextColumn& column : columns) {
            cells.resize(std::max(begin, cells.size() + 1), ' ');
            cells += cell(column);
            begin += column.width;
        }
        fmt::format_to(out, "{}\n", cells);
    };
    line([](const TextColumn& column) { return std::string(column.heading); });
    for (const Measurement* one : rows) {
        line([&](const TextColumn& column) { return column.cell(*one); });
    }
    for (const Measurement* one : rows) {
        if (one->offered_per_s > 0) {
            const double late = one->operations == 0 ? 0
                                                     : 100 * static_cast<double>(one->posted_late) /
                                                           static_cast<double>(one->operations);
            wrap(text, " ",
                 fmt::format(
                     "{} bytes: {:.0f} operations per second were offered, {:.0f} completed; {:.2f} % were posted "
                     "late",
                     one->size, one->offered_per_s, one->operations_per_s(), late));
        }
    }
    fmt::format_to(out, "\n");
}

void tables(std::string& text, const Results& results) {
    std::vector<std::vector<const Measurement*>> groups;
    for (const Measurement& one : results.measurements) {
        const auto group = std::ranges::find_if(groups, [&](const std::vector<const Measurement*>& rows) {
            const Measurement& first = *rows.front();
            return first.op == one.op && first.path == one.path && first.transport == one.transport &&
                   first.half_round_trip == one.half_round_trip;
        });
        if (group != groups.end()) {
            group->push_back(&one);
        } else {
            groups.push_back({&one});
        }
    }
    for (const std::vector<const Measurement*>& rows : groups) {
        table(text, results, rows);
    }
    if (results.test == Test::bw) {
        wrap(text, "",
             in_gigabits(results) ? "Gb/sec: 10^9 bits, as perftest has them; peak: of the best round"
                                  : "MB/sec: 2^20 bytes, as perftest has them; peak: of the best round");
        text += "\n";
    } else if (results.test == Test::rate) {
        text += "Mpps: million messages per second; peak: of the best round\n\n";
    }
}

void side_effects(std::string& text, const Results& results) {
    const TextOut out = std::back_inserter(text);
    const std::size_t width = label_width(results);
    fmt::format_to(out, "{:<{}}{:>25}{:>25}{:>15}{:>12}\n", "while it was timed", width, "application's switches",
                   "worker's switches", "doorbells", "migrations");
    fmt::format_to(out, "{:<{}}{:>25}{:>25}{:>15}\n", "", width, "voluntary / involuntary", "voluntary / involuntary",
                   "per message");
    for (const Measurement& one : results.measurements) {
        const Disturbance noise = one.disturbance();
        fmt::format_to(
            out, "{:<{}}{:>25}{:>25}{:>15}{:>12}\n", label(one), width, switches_text(noise.application),
            noise.worker ? switches_text(*noise.worker) : "-",
            fmt::format("{:.2f} / {:.2f}", one.per_message(one.send_doorbells), one.per_message(one.receive_doorbells)),
            noise.migrations);
    }
    fmt::format_to(out, "\n");
}

// How the time of a request is divided among its stages. Sessions measure this for a sample of the requests.
void stage_table(std::string& text, const Results& results) {
    if (std::ranges::none_of(results.measurements, [](const Measurement& one) { return one.stages.has_value(); })) {
        return;
    }
    const TextOut out = std::back_inserter(text);
    const std::size_t width = label_width(results);
    constexpr const char* kLine = "{:<{}}{:>21}{:>21}{:>21}{:>12}\n";
    fmt::format_to(out, kLine, fmt::format("a request in {}", kLatencySampleEvery), width, "submission ring", "device",
                   "completion ring", "followed");
    constexpr const char* kUnit = "median / 99% ns";
    fmt::format_to(out, "{:<{}}{:>21}{:>21}{:>21}\n", "", width, kUnit, kUnit, kUnit);
    const auto figures = [](const LatencyHistogram& stage) {
        const auto ns = [&](double fraction) {
            return static_cast<double>(stage.percentile(fraction)) / cycles_per_ns();
        };
        return stage.count() == 0 ? std::string("-") : fmt::format("{:.0f} / {:.0f}", ns(0.5), ns(0.99));
    };
    for (const Measurement& one : results.measurements) {
        if (one.stages) {
            fmt::format_to(out, kLine, label(one), width, figures(one.stages->submission_ring),
                           figures(one.stages->device), figures(one.stages->completion_ring),
                           one.stages->submission_ring.count());
        }
    }
    fmt::format_to(out, "\n");
}

std::string figure_text(Figure figure, double value, bool gigabits) {
    switch (figure) {
        case Figure::typical_ns: return fmt::format("{:.1f} ns", value);
        case Figure::bytes_per_s:
            return fmt::format("{:.2f} {}", bandwidth(value, gigabits), gigabits ? "Gb/sec" : "MB/sec");
        case Figure::operations_per_s: return fmt::format("{:.4f} Mpps", value / 1e6);
    }
    return "?";
}

// How far the figures would spread if the measurement were repeated.
void spread(std::string& text, const Results& results) {
    const TextOut out = std::back_inserter(text);
    const std::size_t width = label_width(results);
    fmt::format_to(out, "{:<{}}{:>8}{:>20}   {}\n", "spread", width, "rounds", "median of them",
                   "95 % interval of this median");
    for (const Measurement& one : results.measurements) {
        const std::vector<double> rounds = round_values(one);
        const auto shown = [&](double value) { return figure_text(main_figure(one), value, in_gigabits(results)); };
        fmt::format_to(out, "{:<{}}{:>8}", label(one), width, rounds.size());
        if (const auto interval = bootstrap_median(rounds)) {
            fmt::format_to(out, "{:>20}   {} to {}\n", shown(interval->median), shown(interval->low),
                           shown(interval->high));
        } else {
            fmt::format_to(out, "{:>20}   too few rounds: it takes {}\n",
                           rounds.empty() ? "-" : shown(quantile(rounds, 0.5)), kRoundsForInterval);
        }
    }
    fmt::format_to(out, "\n");
}

void host_lines(std::string& text, const char* prefix, const HostFacts& host, std::uint64_t steal) {
    std::string words = fmt::format("{}{}, {} CPUs, {}", host.name.empty() ? "" : host.name + ": ",
                                    host.machine.cpu_model, host.machine.cpus_online, host.machine.kernel);
    for (const auto& [name, value] : {std::pair{"governor ", &host.governor},
                                      {"hypervisor ", &host.hypervisor},
                                      {"isolated CPUs ", &host.isolated_cpus},
                                      {"clock ", &host.clock}}) {
        words += value->empty() ? "" : fmt::format(", {}{}", name, *value);
    }
    if (steal > 0) {
        words += fmt::format("; the hypervisor gave {} ms of the timed part to others", steal);
    }
    wrap(text, prefix, words);
}

void ran_on(std::string& text, const Results& results) {
    std::uint64_t steal = 0;
    for (const Measurement& one : results.measurements) {
        steal += one.disturbance().steal_ms;
    }
    text += "ran on\n";
    host_lines(text, "  machine   ", results.host, steal);
    if (results.peer_host) {
        host_lines(text, "  peer's    ", *results.peer_host, 0);
    }
    wrap(text, "  device    ", results.device);
    if (!results.peer.empty()) {
        wrap(text, "  peer      ", results.peer);
    }
    if (!results.memory.empty()) {
        wrap(text, "  memory    ", results.memory);
    }
    if (!results.began.empty()) {
        wrap(text, "  began     ", results.began);
    }
}

// ---- The brief report ----

/// A path in the brief report, with the two lines of its heading.
struct BriefColumn {
    PathKind path{};
    const char* first = nullptr;
    const char* second = nullptr;
};

const char* op_in_plain_words(Op op) noexcept {
    switch (op) {
        case Op::send: return "send a message";
        case Op::write: return "write to the peer's memory";
        case Op::write_imm: return "write there and tell it";
        case Op::read: return "read from the peer's memory";
        case Op::fetch_add: return "add to a number there";
        case Op::compare_swap: return "compare and swap one there";
    }
    return "?";
}

}  // namespace

void wrap(std::string& text, std::string_view prefix, std::string_view words) {
    std::string line(prefix);
    bool begun = false;  // the line has a word
    const auto next_line = [&] {
        text.append(line).append("\n");
        line.assign(prefix.size(), ' ');
        begun = false;
    };
    while (!words.empty()) {
        const std::size_t space = words.find(' ');
        std::string_view word = words.substr(0, space);
        words.remove_prefix(space == std::string_view::npos ? words.size() : space + 1);
        if (begun && line.size() + 1 + word.size() > kReportColumns) {
            next_line();
        }
        line.append(begun ? " " : "");
        // A word that is wider than a line, such as a path, is broken, but not within a character of UTF-8.
        while (line.size() + word.size() > kReportColumns) {
            std::size_t fits = kReportColumns - line.size();
            while (fits > 1 && (static_cast<unsigned char>(word[fits]) & 0xc0u) == 0x80u) {
                --fits;
            }
            line.append(word.substr(0, fits));
            word.remove_prefix(fits);
            next_line();
        }
        line.append(word);
        begun = true;
    }
    text.append(line).append("\n");
}

std::string label(const Measurement& measurement) {
    return fmt::format(
        "{}, {} bytes, {}{}", op_name(measurement.op), measurement.size, path_name(measurement.path),
        measurement.transport == QpType::rc ? "" : fmt::format(", {}", transport_name(measurement.transport)));
}

std::string text_report(const Results& results) {
    std::string text;
    title(text, results);
    comparison(text, results);
    limit(text, results);
    tables(text, results);
    side_effects(text, results);
    stage_table(text, results);
    spread(text, results);
    for (const std::string& warning : results.warnings) {
        wrap(text, "warning: ", warning);
    }
    text += results.warnings.empty() ? "" : "\n";
    ran_on(text, results);
    return text;
}

std::string brief_report(const Results& results) {
    std::string text;
    const TextOut out = std::back_inserter(text);
    const ThreadCpus cpus = thread_cpus(results);
    std::vector<BriefColumn> columns;
    for (const BriefColumn& column :
         {BriefColumn{PathKind::direct, "by verbs, on the", "thread itself"},
          BriefColumn{PathKind::event, "by verbs, on a", "thread that sleeps"},
          BriefColumn{PathKind::runtime, "through a worker", cpus.shared() ? "by turns" : "on another CPU"},
          BriefColumn{PathKind::attached, "from another process", "through that worker"}}) {
        if (has_path(results, column.path)) {
            columns.push_back(column);
        }
    }
    // The operations in the order in which they were measured. An atomic has its own size, so the first other operation
    // tells the size.
    std::vector<Op> ops;
    const Measurement* sized = nullptr;
    for (const Measurement& one : results.measurements) {
        if (std::ranges::find(ops, one.op) == ops.end()) {
            ops.push_back(one.op);
        }
        sized = sized == nullptr || (is_atomic(sized->op) && !is_atomic(one.op)) ? &one : sized;
    }
    const auto line = [&](std::string_view name, auto&& cell) {
        fmt::format_to(out, "{:<28}", name);
        for (const BriefColumn& column : columns) {
            fmt::format_to(out, "{:>22}", cell(column));
        }
        fmt::format_to(out, "\n");
    };
    // SoftDevice::describe() begins with this word.
    const bool software = results.device.starts_with("soft ");
    fmt::format_to(out, "One operation at a time, of {} bytes, on {}:\n\n", sized != nullptr ? sized->size : 0,
                   software ? "a device in software" : results.device);
    line("", [](const BriefColumn& column) { return column.first; });
    line("", [](const BriefColumn& column) { return column.second; });
    for (const Op op : ops) {
        line(op_in_plain_words(op), [&](const BriefColumn& column) {
            const auto found = std::ranges::find_if(
                results.measurements, [&](const Measurement& one) { return one.op == op && one.path == column.path; });
            return found == results.measurements.end() || found->latency.count() == 0
                       ? std::string("-")
                       : fmt::format("{:.0f} ns", found->percentile_ns(0.5));
        });
    }
    line("the thread slept, times", [&](const BriefColumn& column) {
        std::uint64_t slept = 0;
        for (const Measurement& one : results.measurements) {
            slept += one.path == column.path ? one.disturbance().application.voluntary : 0;
        }
        return fmt::to_string(slept);
    });
    const std::vector<Hop> rows = hops(results);
    if (cpus.shared()) {
        fmt::format_to(
            out, "\nThis process has one CPU: thread and worker take turns on it, and the figures mean little.\n");
    } else if (!rows.empty()) {
        double most = 0;
        for (const Hop& row : rows) {
            most = std::max(most, row.difference_ns);
        }
        const auto cpu = [](const std::string& number) { return number.empty() ? "" : " " + number; };
        fmt::format_to(out,
                       "\nAn operation goes from CPU{} to the worker's CPU{} and back, up to {:.0f} ns more here,\n"
                       "for which threads and processes share the device without a lock.\n",
                       cpu(cpus.application), cpu(cpus.worker), most);
    }
    return text;
}

}  // namespace pollcore::perf
