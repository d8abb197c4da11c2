// The definition of pollstat's command line. The parser and the manual use it.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "manual/manual.hpp"
#include "manual/short_help.hpp"

namespace pollcore::stat {

struct StatCommandLine {
    StatCommandLine();
    StatCommandLine(const StatCommandLine&) = delete;  // `app` refers to the members below
    StatCommandLine& operator=(const StatCommandLine&) = delete;

    [[nodiscard]] static std::vector<manual::Section> sections();

    CLI::App app{"Shows what the runtimes of this host do: their workers, devices, sessions and queue pairs.",
                 "pollstat"};
    std::string runtime;
    bool list = false;
    bool once = false;
    bool events = false;
    bool json = false;
    std::string watch;
    std::string trace;
    double interval = 1;
    std::uint64_t count = 0;
    std::string prometheus;
    std::vector<std::string> per;
};

}  // namespace pollcore::stat
