// Names that another process or a peer has chosen, as a field of a log line or a message.
//
// Such a name may end a field or a line, or move a terminal's cursor: a process may be called `a), uid 0`, and an
// address may hold a newline, an escape sequence or letters that run from right to left.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <string>
#include <string_view>

namespace pollcore {

/// `name` in double quotes. Inside, a quote or backslash has a backslash before it, and each byte that is not printable
/// ASCII is \xNN. No two names look alike.
[[nodiscard]] std::string printable(std::string_view name);

}  // namespace pollcore
