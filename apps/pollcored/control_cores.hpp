// Which cores the daemon's own threads run on: none that a worker polls on, if there are others.
//
// Thread safety: the calling thread's affinity only. Threads that it starts afterwards inherit it.
#pragma once

#include <string>

#include "pollcore/config.hpp"

namespace pollcore::daemon {

/// Takes the workers' cores out of the calling thread's affinity. When nothing would be left it stays as it
/// is, with a warning, since then services and workers take turns. Returns what it is now, for the log.
std::string leave_worker_cores(const Config& config);

}  // namespace pollcore::daemon
