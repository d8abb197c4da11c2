// Keeps the daemon's other threads off the workers' cores, if the process has other CPUs.
//
// Thread safety: changes the affinity of the calling thread only. Threads that it starts later inherit the affinity.
#pragma once

#include <string>

#include "pollcore/config.hpp"

namespace pollcore::daemon {

/// Removes the workers' cores from the calling thread's affinity. If no CPU would remain, leaves the affinity unchanged
/// and logs a warning: services and workers then take turns. Returns the CPUs of the affinity, for the log.
std::string leave_worker_cores(const Config& config);

}  // namespace pollcore::daemon
