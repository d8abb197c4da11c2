// pollperf: measures RDMA with the runtime and without it.
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>

#include <fmt/format.h>

#include "command_line.hpp"
#include "exit_code.hpp"
#include "options.hpp"
#include "pollperf/measure/run_test.hpp"
#include "pollperf/page/page.hpp"
#include "pollperf/peer/server.hpp"
#include "pollperf/report/csv.hpp"
#include "pollperf/report/demands.hpp"
#include "pollperf/report/hdr_text.hpp"
#include "pollperf/report/json_document.hpp"
#include "pollperf/report/output_file.hpp"
#include "pollperf/report/text_report.hpp"
#include "wake.hpp"
#include "wake_json.hpp"

namespace {

using namespace pollcore::perf;

int usage_error(const std::exception& error) {
    fmt::print(stderr, "pollperf: {}\n", error.what());
    return kExitUsage;
}

// Writes the files that the user has named. The table was printed before, so that the figures are not lost if a file
// cannot be written.
void write_files(const TestOptions& options, const Results& results) {
    const auto document = to_json(results);
    if (!options.json.empty()) {
        write_file(options.json, json_text(results), "--json");
    }
    if (!options.csv.empty()) {
        write_file(options.csv, csv(results), "--csv");
    }
    if (!options.hdr.empty()) {
        for (const auto& [file, text] : hdr_files(options.hdr, results)) {
            write_file(file, text, "--hdr");
        }
    }
    if (!options.report.empty()) {
        write_file(options.report, page({&document, 1}, fmt::format("pollperf {}", test_name(options.test))),
                   "--report");
    }
}

int test(const TestArguments& arguments, const std::string& command) {
    TestOptions options;
    Demands demands;
    try {
        if (is_server(arguments)) {
            run_server(resolve_server(arguments));
            return kExitOk;
        }
        options = resolve(arguments);
        demands = {.bytes_per_s_least = options.bytes_per_s_least,
                   .operations_per_s_least = options.operations_per_s_least,
                   .p99_ns_most = options.p99_ns_most,
                   .baseline = {},
                   .tolerance = options.tolerance};
        if (!options.baseline.empty()) {
            demands.baseline = read_baseline(options.baseline);
            if (!comparable(*demands.baseline, options.test)) {
                throw UsageError(fmt::format("--baseline {}: it has no results of pollperf {}",
                                             options.baseline.string(), test_name(options.test)));
            }
        }
    } catch (const std::invalid_argument& error) {
        return usage_error(error);
    } catch (const pollcore::ConfigError& error) {
        return usage_error(error);
    }
    for (const auto& [file, option] : {std::pair(&options.json, "--json"), std::pair(&options.csv, "--csv"),
                                       std::pair(&options.hdr, "--hdr"), std::pair(&options.report, "--report")}) {
        if (!file->empty()) {
            check_writable(*file, option);
        }
    }
    Results results = run_test(options);
    results.command = command;
    fmt::print("{}", options.brief ? brief_report(results) : text_report(results));
    std::fflush(stdout);
    write_files(options, results);
    const auto missing = missed(results, demands);
    for (const std::string& one : missing) {
        fmt::print(stderr, "pollperf: {}\n", one);
    }
    return missing.empty() ? kExitOk : kExitMissed;
}

int wake(const WakeArguments& arguments) {
    const WakeOptions options = resolve(arguments);
    const WakeResults results = run_wake(options);
    fmt::print("{}", report(options, results));
    if (!options.json.empty()) {
        write_file(options.json, json_report(options, results), "--json");
    }
    return kExitOk;
}

int report(const ReportArguments& arguments) {
    std::vector<nlohmann::ordered_json> documents;
    for (const auto& name : arguments.files) {
        std::ifstream file(name);
        if (!file) {
            throw UsageError(fmt::format("{}: it cannot be read", name.string()));
        }
        documents.push_back(nlohmann::ordered_json::parse(file, nullptr, false));
        if (documents.back().is_discarded()) {
            throw UsageError(fmt::format("{}: it is no JSON", name.string()));
        }
    }
    check_writable(arguments.output, "--output");
    try {
        write_file(arguments.output, page(documents, arguments.title.empty() ? "pollperf" : arguments.title),
                   "--output");
    } catch (const std::invalid_argument& error) {
        throw UsageError(error.what());
    }
    return kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
    const CommandLine line = parse_command_line(argc, argv);
    std::string command = "pollperf";
    for (int i = 1; i < argc; ++i) {
        command.append(" ").append(argv[i]);
    }
    try {
        return line.test     ? test(*line.test, command)
               : line.wake   ? wake(*line.wake)
               : line.report ? report(*line.report)
                             : line.exit_code;
    } catch (const UsageError& error) {
        return usage_error(error);  // a mistake that shows only after the device is open
    } catch (const std::exception& error) {
        fmt::print(stderr, "pollperf: {}\n", error.what());
        return kExitFailed;
    }
}
