// What the library says on standard error. A program that runs over it has a standard error of its own, so a process
// says each thing once, on a line that begins with "pollcore-verbs:".
//
// Thread safety: any thread.
#pragma once

#include <string>
#include <string_view>

namespace pollcore::served {

/// Writes the line, unless this process has told of `what` before. POLLCORE_VERBS_LOG=off: writes nothing. =all: also
/// writes what was told before.
void tell_once(std::string_view what, const std::string& text) noexcept;

}  // namespace pollcore::served
