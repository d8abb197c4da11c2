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

/// The result of parsing the command line. It has either options, or the exit code after --help, --version or a
/// mistake. In the second case, parse_options() has already printed the text.
struct ParsedOptions {
    std::optional<Options> options;
    int exit_code = 0;  ///< the exit code of the program if there are no options
};
[[nodiscard]] ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace pollcore::daemon
