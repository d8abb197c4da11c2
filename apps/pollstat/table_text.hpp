// Tables for a terminal or a pipe.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "choice.hpp"
#include "shown.hpp"

namespace pollcore::stat {

/// A number in at most six characters, such as "12.3k".
[[nodiscard]] std::string short_number(double value);
/// A table of the runtimes that there are.
[[nodiscard]] std::string list_text(const std::vector<Found>& all);
/// All tables. Of a thing only the fields that are not 0 are shown, and of a counter its growth in a second, too.
[[nodiscard]] std::string text_of(const std::vector<ShownTable>& tables);

}  // namespace pollcore::stat
