// The daemon's answers as text for people.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "ctl_options.hpp"

namespace pollcore::ctl {

/// The text as it is if all its bytes are printable ASCII. Else each other byte is \xNN, so that it does no harm to a
/// terminal: another program than pollcored may listen at the socket.
[[nodiscard]] std::string safe(std::string_view text);

/// Texts, numbers and lists line by line, and lists of objects as tables.
[[nodiscard]] std::string view_of(const Json& result);

}  // namespace pollcore::ctl
