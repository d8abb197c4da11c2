// Texts of a segment, for a terminal.
#pragma once

#include <string>
#include <string_view>

#include "base/printable.hpp"

namespace pollcore::stat {

/// The text with each byte that is not printable ASCII as \xNN, and a backslash before " and \. A program may have
/// chosen the text.
[[nodiscard]] inline std::string harmless(std::string_view text) {
    const std::string quoted = printable(text);
    return quoted.substr(1, quoted.size() - 2);
}

}  // namespace pollcore::stat
