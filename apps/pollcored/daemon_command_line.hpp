// What pollcored's command line may have on it, for parsing it and for the manual.
//
// Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "manual/manual.hpp"

namespace pollcore::daemon {

struct DaemonCommandLine {
    /// `default_config`: the file that is read unless --config names one.
    explicit DaemonCommandLine(const std::string& default_config);
    DaemonCommandLine(const DaemonCommandLine&) = delete;  // `app` fills the members below
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
