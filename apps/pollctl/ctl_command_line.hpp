// The definition of pollctl's command line. The parser and the manual use it.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "manual/manual.hpp"
#include "manual/short_help.hpp"

namespace pollcore::ctl {

struct CtlCommandLine {
    CtlCommandLine();
    CtlCommandLine(const CtlCommandLine&) = delete;  // `app` refers to the members below
    CtlCommandLine& operator=(const CtlCommandLine&) = delete;

    [[nodiscard]] static std::vector<manual::Section> sections();

    CLI::App app{"Gives a running pollcored commands: lists what it has, disconnects, drains, reloads.", "pollctl"};
    std::string socket;
    bool json = false;
    double answer_within = 30;

    CLI::App* of_status = nullptr;
    CLI::App* of_list = nullptr;
    CLI::App* of_show = nullptr;
    CLI::App* of_disconnect = nullptr;
    CLI::App* of_drain = nullptr;
    CLI::App* of_resume = nullptr;
    CLI::App* of_stop = nullptr;
    CLI::App* of_reload = nullptr;
    CLI::App* of_log_level = nullptr;
    CLI::App* of_health = nullptr;
    CLI::App* of_version = nullptr;

    std::string list_kind;
    std::string show_what;
    std::uint32_t show_number = 0;
    std::string disconnect_what;
    std::string disconnect_which;
    double grace = 0;
    std::string device;
    double drain_wait = 0;
    std::string level;
};

}  // namespace pollcore::ctl
