// The definition of pollperf's command line. The parser and the manual use it.
//
// Thread safety: one thread.
#pragma once

#include <vector>

#include <CLI/CLI.hpp>

#include "command_line.hpp"
#include "manual/manual.hpp"
#include "manual/short_help.hpp"

namespace pollcore::perf {

struct PerfCommandLine {
    PerfCommandLine();
    PerfCommandLine(const PerfCommandLine&) = delete;  // `app` refers to the members below
    PerfCommandLine& operator=(const PerfCommandLine&) = delete;

    [[nodiscard]] static std::vector<manual::Section> sections();
    [[nodiscard]] static std::vector<manual::Section> serve_sections();
    [[nodiscard]] static std::vector<manual::Section> report_sections();

    CLI::App app{"Measures RDMA operations: plain verbs, and through pollcore's workers", "pollperf"};
    // Subcommands of `app`.
    CLI::App* of_lat = nullptr;
    CLI::App* of_bw = nullptr;
    CLI::App* of_rate = nullptr;
    CLI::App* of_serve = nullptr;
    CLI::App* of_wake = nullptr;
    CLI::App* of_report = nullptr;
    TestArguments lat;
    TestArguments bw;
    TestArguments rate;
    TestArguments serve;
    WakeArguments wake;
    ReportArguments report;
};

}  // namespace pollcore::perf
