// Prepares names that another process or a peer has chosen for a log line or a message.
//
// Such a name could end a field or a line, or move a terminal's cursor. A process may be called `a), uid 0`, and an
// address may contain a newline, an escape sequence or letters that run from right to left.
//
// Thread safety: any thread.
#pragma once

#include <string>
#include <string_view>

namespace pollcore {

/// Returns `name` in double quotes. Each quote and each backslash in it gets a backslash before it. Each byte that is
/// not printable ASCII becomes \xNN. Different names have different results.
[[nodiscard]] std::string printable(std::string_view name);

}  // namespace pollcore
