// The command line of pollctl.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace pollcore::ctl {

using Json = nlohmann::ordered_json;

enum ExitCode : int {
    kExitOk = 0,
    kExitFailed = 1,  ///< the daemon refused, or could not do it; health: a thread hangs
    kExitUsage = 2,
    kExitNoDaemon = 3,  ///< no daemon is at the socket, it gives no answer, or this user may not give commands
};

struct Options {
    std::string socket;
    bool json = false;
    std::chrono::milliseconds answer_within{0};
    Json command;  ///< as common/control_wire.hpp says
    /// disconnect process: the process to wait for.
    std::optional<std::uint32_t> until_gone{};
    std::chrono::milliseconds grace{0};
    /// drain: how long to wait until no process and no connection is left; 0: not at all.
    std::chrono::milliseconds drain_wait{0};
};

/// The result of parsing the command line. It has either options, or the exit code after --help, --version or a
/// mistake. In the second case, parse_options() has already printed the text.
struct ParsedOptions {
    std::optional<Options> options;
    int exit_code = 0;
};
[[nodiscard]] ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace pollcore::ctl
