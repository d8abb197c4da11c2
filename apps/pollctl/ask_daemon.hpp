// Gives the daemon a command, and waits for its answer.
//
// Thread safety: one thread.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

#include "ctl_options.hpp"

namespace pollcore::ctl {

/// There is no daemon at the socket, it gives no answer, or this user may not give commands.
class NoDaemon : public std::runtime_error {
    using std::runtime_error::runtime_error;
};
/// The daemon refused the command or could not carry it out; what() is its reason, which may have any bytes.
class Refused : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The largest answer that is taken, in bytes.
inline constexpr std::size_t kAnswerMax = 256u << 20;

/// Returns the answer's result. Throws NoDaemon or Refused.
[[nodiscard]] Json ask(const std::string& socket, const Json& command, std::chrono::milliseconds within);

/// The result that the answer's text has. `socket` is for messages. Throws as ask().
[[nodiscard]] Json result_of(const std::string& text, const std::string& socket);

}  // namespace pollcore::ctl
