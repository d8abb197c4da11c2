// The command line of pollcored.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "pollcore/config.hpp"

namespace pollcore::daemon {

struct Options {
    enum class Action { run, check, print };
    Action action = Action::run;
    std::filesystem::path config_file;
    std::optional<LogLevel> log_level;  ///< overrides the file's
};

/// What the command line comes to: options to go on with, or an exit code when everything is said already
/// (--help, --version, or a mistake, which is told on stderr).
struct ParsedOptions {
    std::optional<Options> options;
    int exit_code = 0;
};
[[nodiscard]] ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace pollcore::daemon
