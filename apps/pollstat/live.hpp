// The live view in a terminal, by ncurses.
//
// Thread safety: one thread.
#pragma once

#include "stat_options.hpp"

namespace pollcore::stat {

/// Shows the runtime until the user quits, and returns an exit code. Throws Error if there is no terminal.
[[nodiscard]] int live(const Options& options);

}  // namespace pollcore::stat
