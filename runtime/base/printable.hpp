// Names that another process or a peer has chosen, as a field of a log line or a message.
//
// Such a name may hold what ends a field, a line or a terminal's patience: `a), uid 0` as a process's name, a newline, an escape
// sequence, letters that run from right to left.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <string>
#include <string_view>

namespace pollcore {

/// `name` in double quotes, which end where the field ends: in them, quotes and backslashes have a backslash before them, and each
/// byte that is not printable ASCII is \xNN. So no two names look alike.
[[nodiscard]] std::string printable(std::string_view name);

}  // namespace pollcore
