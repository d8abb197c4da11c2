// The definition of pollcore-run's command line. The parser and the manual use it.
//
// Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "manual/manual.hpp"
#include "manual/short_help.hpp"

namespace pollcore::run {

inline constexpr int kExitFailed = 125;     ///< pollcore-run itself failed, as env(1) has it
inline constexpr int kExitCannotRun = 126;  ///< the program is there and cannot be run
inline constexpr int kExitNoProgram = 127;  ///< there is no such program
inline constexpr int kExitUnserved = 1;     ///< --check: nothing of the program can be served

struct RunCommandLine {
    RunCommandLine();
    RunCommandLine(const RunCommandLine&) = delete;  // `app` refers to the members below
    RunCommandLine& operator=(const RunCommandLine&) = delete;

    [[nodiscard]] static std::vector<manual::Section> sections();
    /// The program and its arguments.
    [[nodiscard]] std::vector<std::string> command() const;

    CLI::App app{
        "Runs a verbs program, unmodified, over the polling cores of pollcored: pollcore-run [OPTIONS] PROGRAM "
        "[ARGUMENT...]",
        "pollcore-run"};
    std::string socket;
    std::string worker;
    std::string log = "once";
    bool beside = false;
    bool check = false;
};

}  // namespace pollcore::run
