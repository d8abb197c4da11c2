// The definition of pollcored's command line. The parser and the manual use it.
//
// Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "manual/manual.hpp"
#include "manual/short_help.hpp"

namespace pollcore::daemon {

struct DaemonCommandLine {
    /// `default_config` is the file that is read without --config.
    explicit DaemonCommandLine(const std::string& default_config);
    DaemonCommandLine(const DaemonCommandLine&) = delete;  // `app` refers to the members below
    DaemonCommandLine& operator=(const DaemonCommandLine&) = delete;

    [[nodiscard]] static std::vector<manual::Section> sections();

    CLI::App app{
        "Runs pollcore's polling cores, serves the built-in services that a configuration file names, and lets "
        "other processes attach.",
        "pollcored"};
    std::string config_file;
    std::string level;
    bool check = false;
    bool print = false;
};

}  // namespace pollcore::daemon
