// The definition of polldoctor's command line. The parser and the manual use it.
//
// Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "manual/manual.hpp"
#include "manual/short_help.hpp"

namespace pollcore::doctor {

struct DoctorCommandLine {
    /// `default_config` is the file that is read without --config.
    explicit DoctorCommandLine(const std::string& default_config);
    DoctorCommandLine(const DoctorCommandLine&) = delete;  // `app` refers to the members below
    DoctorCommandLine& operator=(const DoctorCommandLine&) = delete;

    [[nodiscard]] static std::vector<manual::Section> sections();

    CLI::App app{
        "Judges this host for the workers and devices of a configuration: what costs time, how much, and how to mend "
        "it. Changes nothing.",
        "polldoctor"};
    std::string config_file;
    std::string root = "/";
    std::string bundle;
    bool json = false;
    bool all = false;
    bool disturb = false;
    CLI::Option* config_option = nullptr;
};

}  // namespace pollcore::doctor
