#include "daemon_options.hpp"

#include <cstdio>
#include <map>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "daemon_exit_code.hpp"
#include "pollcore/version.hpp"

namespace pollcore::daemon {
namespace {

constexpr const char* kAbout =
    "Runs pollcore's polling cores and serves the built-in services that a configuration file names.";

constexpr const char* kFooter = R"(Exit codes:
  0  stopped as asked (SIGTERM or SIGINT), everything that was taken was answered; --check: the file is accepted
  1  could not start, or a service broke down while running
  2  wrong command line or configuration; --check: the file is refused
  3  stopped as asked, but cut short: by drain_timeout, or by a second signal

Signals: SIGTERM and SIGINT stop listening, finish what was taken and end; a second one ends at once.
SIGHUP reads the configuration again: log_level, services, and what an attached process may have ([attach] *_max) change at
once; what else differs is named in the log and needs a restart.
)";

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
    Options options;
    std::string config_file = POLLCORE_CONFIG_FILE;
    std::string level;
    bool check = false;
    bool print = false;

    CLI::App app{kAbout, "pollcored"};
    app.footer(kFooter);
    app.set_version_flag("--version", fmt::format("pollcored {}", POLLCORE_VERSION));
    app.add_option("-c,--config", config_file, "The configuration, in TOML")->type_name("FILE")->capture_default_str();
    const std::map<std::string, LogLevel> levels{{"error", LogLevel::error},
                                                 {"warning", LogLevel::warning},
                                                 {"info", LogLevel::info},
                                                 {"debug", LogLevel::debug}};
    auto* const log_level =
        app.add_option("--log-level", level, "Least important lines to log: error, warning, info or debug")
            ->check(CLI::IsMember(levels).description(""))
            ->type_name("LEVEL");
    auto* const check_flag = app.add_flag("--check", check, "Say whether the file is accepted, and exit");
    app.add_flag("--print", print, "Print the configuration in effect, with its defaults marked, and exit")
        ->excludes(check_flag);

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        // Prints help, version or the mistake; 0 for the first two.
        return {std::nullopt, app.exit(error) == 0 ? kExitOk : kExitUsage};
    }
    options.config_file = config_file;
    options.action = check ? Options::Action::check : print ? Options::Action::print : Options::Action::run;
    if (log_level->count() > 0) {
        options.log_level = levels.at(level);
    }
    return {std::move(options), kExitOk};
}

}  // namespace pollcore::daemon
