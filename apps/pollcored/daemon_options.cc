#include "daemon_options.hpp"

#include <map>

#include "daemon_command_line.hpp"
#include "daemon_exit_code.hpp"

namespace pollcore::daemon {
namespace {

const std::map<std::string, LogLevel> kLevels{
    {"error", LogLevel::error}, {"warning", LogLevel::warning}, {"info", LogLevel::info}, {"debug", LogLevel::debug}};

}  // namespace

DaemonCommandLine::DaemonCommandLine(const std::string& default_config) : config_file(default_config) {
    app.footer(manual::footer(sections()));
    auto& help = manual::ShortHelp::add_to(app);
    app.set_version_flag("--version", manual::version_text("pollcored"), "Print the version and how this was built");
    app.add_option("-c,--config", config_file, "The configuration, in TOML")->type_name("FILE")->capture_default_str();
    app.add_option("--log-level", level, "Least important lines to log")
        ->check(CLI::IsMember(kLevels).description(""))
        ->type_name("{error,warning,info,debug}");
    auto* const check_flag = app.add_flag("--check", check, "Say whether the file is accepted, and exit");
    app.add_flag("--print", print, "Print the configuration in effect, with its defaults marked, and exit")
        ->excludes(check_flag);
    help.show(app, {{"--config"},
                    {"--log-level", "Least important lines to log: error, warning, info, debug"},
                    {"--check"},
                    {"--print"},
                    {"--version"}});
}

std::vector<manual::Section> DaemonCommandLine::sections() {
    return {{"Exit status",
             {{"0",
               "Stopped as asked (SIGTERM or SIGINT), and all accepted work was done. With --check: the "
               "file is accepted."},
              {"1", "It could not start, or a service broke down while it ran."},
              {"2", "The command line or the configuration is wrong. With --check: the file is refused."},
              {"3", "Stopped as asked, but cut short: by drain_timeout, or by a second signal."}}},
            {"Signals",
             {{"",
               "SIGTERM and SIGINT: it stops listening, finishes what was taken, and ends. A second one ends it at "
               "once."},
              {"",
               "SIGHUP: it reads the configuration again. log_level, services, and what an attached process may have "
               "([attach] *_max) change at once. The log names other differences; these need a restart."},
              {"", "pollctl(1) asks for the same, and for more."}}}};
}

ParsedOptions parse_options(int argc, const char* const* argv) {
    DaemonCommandLine line(POLLCORE_CONFIG_FILE);
    try {
        line.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        // exit() prints the help, the version or the mistake. It returns 0 for help and version.
        return {std::nullopt, line.app.exit(error) == 0 ? kExitOk : kExitUsage};
    }
    Options options;
    options.config_file = line.config_file;
    options.action = line.check ? Options::Action::check : line.print ? Options::Action::print : Options::Action::run;
    if (!line.level.empty()) {
        options.log_level = kLevels.at(line.level);
    }
    return {std::move(options), kExitOk};
}

}  // namespace pollcore::daemon
