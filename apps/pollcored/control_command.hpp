// A command of pollctl, as the daemon reads it. Whoever may connect may send any bytes.
//
// Thread safety: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "pollcore/logging.hpp"

namespace pollcore::daemon {

struct ControlCommand {
    enum class What : std::uint8_t {
        status,
        list,
        show_process,
        drain,
        resume,
        stop,
        disconnect_process,
        disconnect_queue_pair,
        log_level,
        set_log_level,
        health,
        reload,
        version,
    };
    What what = What::status;
    std::string kind;                    ///< list: one of control_wire::kKinds
    std::uint32_t process = 0;           ///< the daemon's number of an attached process
    std::chrono::milliseconds grace{0};  ///< disconnect_process: time for the process to detach by itself
    std::string queue_pair;              ///< its number or its name
    std::string device;                  ///< disconnect_queue_pair: only one of this device; empty: of any
    LogLevel level = LogLevel::info;     ///< set_log_level
};

/// Says why the bytes are no command. what() is printable.
class BadCommand : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The most time that a command may give a process to detach.
inline constexpr std::chrono::milliseconds kGraceMax = std::chrono::hours(1);

/// Throws BadCommand.
[[nodiscard]] ControlCommand parse_command(std::string_view text);

/// The name of a level in commands and in the configuration.
[[nodiscard]] std::string_view level_name(LogLevel level) noexcept;

}  // namespace pollcore::daemon
