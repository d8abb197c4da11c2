#include "stat_options.hpp"

#include <algorithm>

#include "stat_command_line.hpp"

namespace pollcore::stat {

StatCommandLine::StatCommandLine() {
    app.footer(manual::footer(sections()));
    auto& help = manual::ShortHelp::add_to(app);
    app.set_version_flag("--version", manual::version_text("pollstat"), "Print the version and how this was built");
    app.add_option(
           "runtime", runtime,
           "A runtime: its name, the number of its process, or the file of its segment. Needed if there are several")
        ->type_name("RUNTIME");
    auto* const list_flag = app.add_flag("--list", list, "List the runtimes of this host, and exit");
    auto* const once_flag =
        app.add_flag("--once", once, "Print all tables once, and exit. Rates are those of one interval")
            ->excludes(list_flag);
    app.add_flag("--events", events,
                 "Print the last 4096 lines of the runtime's log, also of one that has died, and exit")
        ->excludes(list_flag)
        ->excludes(once_flag);
    app.add_flag("--json", json, "Print JSON instead of tables");
    app.add_option(
           "--watch", watch,
           "Print one value at each interval: ROW.FIELD, such as worker0.busy or net0.lost. For a counter: how much "
           "it grew in a second")
        ->type_name("ROW.FIELD")
        ->excludes(list_flag)
        ->excludes(once_flag);
    auto* const trace_option =
        app.add_option(
               "--trace", trace,
               "Write a trace of the requests that the runtime follows, one in 253, and of its workers' stalls, for "
               "ui.perfetto.dev. Looks for it --count times, or until Ctrl-C")
            ->type_name("FILE");
    app.add_option("--interval", interval, "Seconds between two looks")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.05, 3600.0).description(""))
        ->capture_default_str();
    app.add_option("--count", count, "With --watch and --trace: stop after so many lines or looks")->type_name("LINES");
    auto* const prometheus_option =
        app.add_option("--prometheus", prometheus,
                       "Offer metrics to Prometheus at this address, until SIGTERM: 127.0.0.1:PORT, [::1]:PORT, or "
                       ":PORT for all addresses. Without RUNTIME: of all runtimes of this host, also of those that "
                       "start later")
            ->type_name("ADDRESS");
    for (const char* const other : {"--list", "--once", "--events", "--json", "--watch"}) {
        trace_option->excludes(app.get_option(other));
        prometheus_option->excludes(app.get_option(other));
    }
    trace_option->excludes(prometheus_option);
    app.add_option("--per", per,
                   "With --prometheus: metrics of each session or queue pair, instead of sums by worker, device and "
                   "user. There may be thousands")
        ->type_name("{session,queue_pair}")
        ->delimiter(',')
        ->check(CLI::IsMember({"session", "queue_pair"}).description(""))
        ->needs(prometheus_option);
    help.show(app, {{"runtime"},
                    {"--list"},
                    {"--once"},
                    {"--events", "Print the last lines of the runtime's log, and exit"},
                    {"--json"},
                    {"--trace", "Write a trace of followed requests and stalls"},
                    {"--watch", "Print one value at each interval, such as worker0.busy"},
                    {"--interval"},
                    {"--count"},
                    {"--prometheus", "Offer metrics to Prometheus at this address"},
                    {"--per"},
                    {"--version"}});
}

std::vector<manual::Section> StatCommandLine::sections() {
    return {
        {"Exit status",
         {{"0", "It showed what was asked for. With --prometheus: it ended because of SIGTERM or SIGINT."},
          {"1",
           "There is no such runtime, its segment may not be read, or it ended meanwhile. With --prometheus: it cannot "
           "listen at the address."},
          {"2", "The command line is wrong."}}},
        {"Segments",
         {{"",
           "Each pollcored has a statistics segment, a file \"pollcore-*.statistics\" in /dev/shm; a program that "
           "embeds "
           "a runtime has one by choice ([statistics] segment). Its owner and the group of the configuration may read "
           "it. The segment of a process that died stays until another runtime of its user starts."}}},
        {"Metrics",
         {{"",
           "With --prometheus, a field of a segment is the metric pollcore_TABLE_FIELD, in seconds or bytes, such as "
           "pollcore_worker_steps_total. Texts and numbers that describe a thing are labels of pollcore_TABLE_info. "
           "pollcore_user_FIELD is a sum over the processes of a user. Sums of counters, and the busy time of workers, "
           "begin at zero with the exporter. Each series has the labels runtime, which is the name of the runtime, and "
           "segment, which differs for two runtimes of one name."},
          {"",
           "pollcore_up is 0 for a runtime that has died, and for one that was named and does not exist. "
           "pollcore_exporter_unreadable_segments counts what cannot be read. The text is made anew at most every 100 "
           "ms. There is no authentication."}}}};
}

ParsedOptions parse_options(int argc, const char* const* argv) {
    StatCommandLine line;
    try {
        line.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return {std::nullopt, line.app.exit(error) == 0 ? kExitOk : kExitUsage};
    }
    Options options;
    options.action = !line.prometheus.empty() ? Options::Action::prometheus
                     : line.list              ? Options::Action::list
                     : line.events            ? Options::Action::events
                     : !line.watch.empty()    ? Options::Action::watch
                     : !line.trace.empty()    ? Options::Action::trace
                     : line.once || line.json ? Options::Action::once
                                              : Options::Action::live;
    options.json = line.json;
    options.runtime = line.runtime;
    options.watch = line.watch;
    options.trace = line.trace;
    options.interval = std::chrono::nanoseconds(static_cast<std::int64_t>(line.interval * 1e9));
    options.count = line.count;
    options.prometheus = line.prometheus;
    const auto has = [&](const char* table) {
        return std::find(line.per.begin(), line.per.end(), table) != line.per.end();
    };
    options.per_session = has("session");
    options.per_queue_pair = has("queue_pair");
    return {std::move(options), kExitOk};
}

}  // namespace pollcore::stat
