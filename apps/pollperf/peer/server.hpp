// `pollperf serve`: the other end of measurements between two processes. The clients say what they measure.
//
// Thread safety: one thread calls run_server(). Each client has threads of its own.
#pragma once

#include "pollperf/options.hpp"

namespace pollcore::perf {

/// Serves clients until SIGINT or SIGTERM, or with ServeOptions::once until the first client has left. Writes to
/// standard error where it listens, who comes and leaves, and what has failed. Throws Error if it cannot listen, and
/// MeasurementError with `once` if the client's measurement fails or no client comes.
void run_server(const ServeOptions& options);

}  // namespace pollcore::perf
