// pollperf: measures RDMA with the runtime and without it. This file knows the subcommands and the exit
// codes.
#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "json_report.hpp"
#include "lat.hpp"
#include "options.hpp"
#include "report.hpp"

namespace {

using namespace pollcore::perf;

enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2 };

int usage_error(const std::exception& error) {
    fmt::print(stderr, "pollperf: {}\n", error.what());
    return kUsage;
}

int lat(const LatArguments& arguments) {
    LatOptions options;
    try {
        options = resolve(arguments);
    } catch (const UsageError& error) {
        return usage_error(error);
    } catch (const pollcore::ConfigError& error) {
        return usage_error(error);
    }
    const LatResults results = run_lat(options);
    // The table first: should the file fail, the figures are not lost.
    fmt::print("{}", report(options, results));
    if (!options.json.empty()) {
        write_json(options.json, options, results);
    }
    return kOk;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Measures RDMA operations: plain verbs, and through pollcore's workers", "pollperf");
    app.set_version_flag("--version", "pollperf " POLLCORE_VERSION);
    app.require_subcommand(1);
    app.get_formatter()->column_width(34);
    LatArguments lat_arguments;
    CLI::App* lat_command =
        app.add_subcommand("lat", "Latency of single operations: to and fro, one at a time");
    add_lat_options(*lat_command, lat_arguments);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? kOk : kUsage;  // 0: --help
    }
    try {
        return lat(lat_arguments);
    } catch (const UsageError& error) {
        return usage_error(error);  // seen only once the device was open
    } catch (const std::exception& error) {
        fmt::print(stderr, "pollperf: {}\n", error.what());
        return kFailed;
    }
}
