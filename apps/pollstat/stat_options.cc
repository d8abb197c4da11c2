#include "stat_options.hpp"

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
    app.add_option(
           "--trace", trace,
           "Write a trace of the requests that the runtime follows, one in 253, and of its workers' stalls, for "
           "ui.perfetto.dev. Looks for it --count times, or until Ctrl-C")
        ->type_name("FILE")
        ->excludes(list_flag)
        ->excludes(once_flag);
    app.add_option("--interval", interval, "Seconds between two looks")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.05, 3600.0).description(""))
        ->capture_default_str();
    app.add_option("--count", count, "With --watch and --trace: stop after so many lines or looks")->type_name("LINES");
    help.show(app, {{"runtime"},
                    {"--list"},
                    {"--once"},
                    {"--events", "Print the last lines of the runtime's log, and exit"},
                    {"--json"},
                    {"--trace", "Write a trace of followed requests and stalls"},
                    {"--watch", "Print one value at each interval, such as worker0.busy"},
                    {"--interval"},
                    {"--count"},
                    {"--version"}});
}

std::vector<manual::Section> StatCommandLine::sections() {
    return {
        {"Exit status",
         {{"0", "It showed what was asked for."},
          {"1", "There is no such runtime, its segment may not be read, or it ended meanwhile."},
          {"2", "The command line is wrong."}}},
        {"Segments",
         {{"",
           "Each pollcored has a statistics segment, a file \"pollcore-*.statistics\" in /dev/shm; a program that "
           "embeds "
           "a runtime has one by choice ([statistics] segment). Its owner and the group of the configuration may read "
           "it. The segment of a process that died stays until another runtime of its user starts."}}}};
}

ParsedOptions parse_options(int argc, const char* const* argv) {
    StatCommandLine line;
    try {
        line.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return {std::nullopt, line.app.exit(error) == 0 ? kExitOk : kExitUsage};
    }
    Options options;
    options.action = line.list                ? Options::Action::list
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
    return {std::move(options), kExitOk};
}

}  // namespace pollcore::stat
