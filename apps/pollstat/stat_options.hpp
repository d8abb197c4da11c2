// The command line of pollstat.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace pollcore::stat {

enum ExitCode : int {
    kExitOk = 0,
    kExitNothing = 1,  ///< there is no such runtime, or it may not be read, or it has ended
    kExitUsage = 2,
};

struct Options {
    enum class Action { live, list, once, events, trace, watch, prometheus };
    Action action = Action::live;
    bool json = false;
    std::string runtime;  ///< a name, a process number, or a file; empty: the only one
    std::string watch;    ///< "ROW.FIELD"
    std::string trace;    ///< file to write
    std::chrono::nanoseconds interval{std::chrono::seconds(1)};
    std::uint64_t count = 0;      ///< lines of watch, or looks for the trace; 0: no end
    std::string prometheus;       ///< the address at which metrics are offered
    bool per_session = false;     ///< in metrics
    bool per_queue_pair = false;  ///< in metrics
};

/// The result of parsing the command line. It has either options, or the exit code after --help, --version or a
/// mistake. In the second case, parse_options() has already printed the text.
struct ParsedOptions {
    std::optional<Options> options;
    int exit_code = 0;
};
[[nodiscard]] ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace pollcore::stat
