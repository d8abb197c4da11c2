// pollstat: shows the statistics segments of this host's runtimes (pollcore/statistics.hpp).
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include "choice.hpp"
#include "exporter.hpp"
#include "harmless.hpp"
#include "json.hpp"
#include "live.hpp"
#include "pollcore/error.hpp"
#include "shown.hpp"
#include "stat_options.hpp"
#include "table_text.hpp"
#include "trace_file.hpp"

namespace pollcore::stat {
namespace {

int list(const Options& options) {
    const std::vector<Found> all = find_all();
    fmt::print("{}", options.json ? list_json(all) + "\n" : list_text(all));
    return kExitOk;
}

int once(const Options& options) {
    const std::filesystem::path file = choose(options.runtime);
    const statistics::Snapshot before = statistics::read_statistics(file);
    if (options.json) {
        fmt::print("{}\n", json_of(before));
        return kExitOk;
    }
    if (before.alive) {
        std::this_thread::sleep_for(options.interval);
    }
    const statistics::Snapshot now = statistics::read_statistics(file);
    fmt::print("{} (process {}{})\n{}", name_of(now), now.header.pid, now.alive ? "" : ", dead: its last values",
               text_of(shown(before, now)));
    return kExitOk;
}

int events(const Options& options) {
    const statistics::Snapshot now = statistics::read_statistics(choose(options.runtime));
    fmt::print("{}", events_text(shown(now, now)));
    return kExitOk;
}

/// Finds the value that `wanted` names, "ROW.FIELD". Throws Error(EINVAL), which names what there is.
double watched(const std::vector<ShownTable>& tables, const std::string& wanted) {
    const std::size_t dot = wanted.rfind('.');
    const std::string row_name = wanted.substr(0, dot);
    const std::string field_name = dot == std::string::npos ? "" : wanted.substr(dot + 1);
    std::string names;
    for (const ShownTable& table : tables) {
        const auto name = table.field("name");
        for (const auto& row : table.rows) {
            const std::string its = name ? row[*name].text : table.name;
            if (its != row_name) {
                names += its.empty() ? "" : " " + its;
                continue;
            }
            const auto field = table.field(field_name);
            if (!field || row[*field].total.size() != 1) {
                throw Error(EINVAL, fmt::format("\"{}\" has no value \"{}\"", row_name, field_name));
            }
            return table.fields[*field].kind == statistics::Kind::counter ? row[*field].rate : row[*field].total[0];
        }
    }
    throw Error(EINVAL, fmt::format("there is no \"{}\"; there are:{}", harmless(row_name), names));
}

int watch(const Options& options) {
    const std::filesystem::path file = choose(options.runtime);
    statistics::Snapshot before = statistics::read_statistics(file);
    (void)watched(shown(before, before), options.watch);
    for (std::uint64_t line = 0; options.count == 0 || line < options.count; ++line) {
        std::this_thread::sleep_for(options.interval);
        statistics::Snapshot now = statistics::read_statistics(file);
        if (!now.alive) {
            throw Error(ESRCH, fmt::format("{} has ended", name_of(now)));
        }
        fmt::print("{}\n", watched(shown(before, now), options.watch));
        std::fflush(stdout);
        before = std::move(now);
    }
    return kExitOk;
}

volatile std::sig_atomic_t g_stop = 0;

/// Looks at the runtime until Ctrl-C, or Options::count times, and writes what it saw.
int trace(const Options& options) {
    const std::filesystem::path file = choose(options.runtime);
    std::ofstream out(options.trace, std::ios::trunc);
    if (!out) {
        throw Error(errno, fmt::format("cannot write {}", options.trace));
    }
    struct sigaction stop {};
    stop.sa_handler = [](int) { g_stop = 1; };
    ::sigaction(SIGINT, &stop, nullptr);
    ::sigaction(SIGTERM, &stop, nullptr);
    Trace seen;
    for (std::uint64_t look = 0; g_stop == 0 && (options.count == 0 || look < options.count); ++look) {
        try {
            const statistics::Snapshot now = statistics::read_statistics(file);
            seen.add(now);
            if (!now.alive) {
                break;  // these are its last requests
            }
        } catch (const Error&) {
            if (look == 0) {
                throw;
            }
            break;  // the runtime has ended, and has removed its segment
        }
        timespec pause{.tv_sec = options.interval / std::chrono::seconds(1),
                       .tv_nsec = (options.interval % std::chrono::seconds(1)).count()};
        ::nanosleep(&pause, nullptr);  // a signal ends it
    }
    out << seen.json();
    out.close();
    if (!out) {
        throw Error(EIO, fmt::format("cannot write {}", options.trace));
    }
    fmt::print("{}: {} requests, {} stalls\n", options.trace, seen.requests(), seen.stalls());
    return kExitOk;
}

int run(const Options& options) {
    switch (options.action) {
        case Options::Action::live: return live(options);
        case Options::Action::list: return list(options);
        case Options::Action::once: return once(options);
        case Options::Action::events: return events(options);
        case Options::Action::trace: return trace(options);
        case Options::Action::watch: return watch(options);
        case Options::Action::prometheus: return serve_prometheus(options);
    }
    return kExitUsage;
}

}  // namespace
}  // namespace pollcore::stat

int main(int argc, char** argv) {
    using namespace pollcore::stat;
    const ParsedOptions parsed = parse_options(argc, argv);
    if (!parsed.options) {
        return parsed.exit_code;
    }
    try {
        return run(*parsed.options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "pollstat: {}\n", error.what());
        return kExitNothing;
    }
}
