// Keeps the daemon's own threads off the cores that workers poll on, if there are others.
//
// Thread safety: the calling thread's affinity only. Threads that it starts afterwards inherit it.
#pragma once

#include <string>

#include "pollcore/config.hpp"

namespace pollcore::daemon {

/// Takes the workers' cores out of the calling thread's affinity. If nothing would be left the affinity
/// stays as it is, with a warning: services and workers take turns. Returns the CPUs of the affinity, for the log.
std::string leave_worker_cores(const Config& config);

}  // namespace pollcore::daemon
