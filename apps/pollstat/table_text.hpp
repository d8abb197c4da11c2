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
/// All tables but the events. Of a thing only the fields that are not 0 are shown, and of a counter its growth in a
/// second, too.
[[nodiscard]] std::string text_of(const std::vector<ShownTable>& tables);

/// The last lines of the runtime's log, the oldest first.
[[nodiscard]] std::string events_text(const std::vector<ShownTable>& tables);
/// The time of an event, which is in ns since 1970: "2026-02-28T12:00:00.000Z".
[[nodiscard]] std::string time_text(double ns);
/// The name of a LogLevel.
[[nodiscard]] std::string level_text(double level);

}  // namespace pollcore::stat
