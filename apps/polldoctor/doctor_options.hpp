// The command line of polldoctor.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace pollcore::doctor {

enum ExitCode : int {
    kExitOk = 0,        ///< all is ok, or worth a note
    kExitWarnings = 1,  ///< the worst finding is a warning
    kExitUsage = 2,     ///< the command line or the configuration is wrong
    kExitFaults = 3,    ///< the worst finding is a fault
    kExitFailed = 4,    ///< the host could not be judged, or the bundle could not be written
};

struct Options {
    std::filesystem::path config_file;
    bool config_given = false;  ///< by --config; else there may be no such file
    std::filesystem::path root = "/";
    bool json = false;
    bool all = false;
    bool disturb = false;
    std::filesystem::path bundle;  ///< empty: no bundle
};

/// The result of parsing the command line. It has either options, or the exit code after --help, --version or a
/// mistake. In the second case, parse_options() has already printed the text.
struct ParsedOptions {
    std::optional<Options> options;
    int exit_code = 0;
};
[[nodiscard]] ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace pollcore::doctor
