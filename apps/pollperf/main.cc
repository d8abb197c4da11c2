// pollperf: measures RDMA with the runtime and without it.
#include <cstdio>
#include <exception>

#include <fmt/format.h>

#include "command_line.hpp"
#include "exit_code.hpp"
#include "json_report.hpp"
#include "lat.hpp"
#include "options.hpp"
#include "text_report.hpp"
#include "wake.hpp"

namespace {

using namespace pollcore::perf;

int usage_error(const std::exception& error) {
    fmt::print(stderr, "pollperf: {}\n", error.what());
    return kExitUsage;
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
    // Prints the table first, so that the results are not lost if the file cannot be written.
    fmt::print("{}", options.brief ? brief_report(options, results) : report(options, results));
    if (!options.json.empty()) {
        write_json(options.json, json_report(options, results));
    }
    return kExitOk;
}

int wake(const WakeArguments& arguments) {
    const WakeOptions options = resolve(arguments);
    const WakeResults results = run_wake(options);
    fmt::print("{}", report(options, results));
    if (!options.json.empty()) {
        write_json(options.json, json_report(options, results));
    }
    return kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
    const CommandLine line = parse_command_line(argc, argv);
    if (!line.lat && !line.wake) {
        return line.exit_code;
    }
    try {
        return line.lat ? lat(*line.lat) : wake(*line.wake);
    } catch (const UsageError& error) {
        return usage_error(error);  // a mistake that shows only after the device is open
    } catch (const std::exception& error) {
        fmt::print(stderr, "pollperf: {}\n", error.what());
        return kExitFailed;
    }
}
