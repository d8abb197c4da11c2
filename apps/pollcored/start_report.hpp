// Log lines about the daemon's devices, workers, services and attached processes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "service.hpp"

namespace pollcore::daemon {

/// Logs the devices, the memory, EAL, and each worker's core and idle policy. `service_cpus` are the CPUs of the
/// services' threads.
void log_runtime(const Runtime& runtime, const std::string& service_cpus);
void log_services(const std::vector<std::unique_ptr<Service>>& services);

/// Called at the end of the daemon. Logs how many processes were attached, and how they ended.
void log_attached(const AttachCounts& counts);

/// The status for the service manager: "2 services, 5 connections, 3 processes attached". `attach` is null if no
/// process may attach. `draining`: the daemon takes no new processes and connections.
[[nodiscard]] std::string status_line(const std::vector<std::unique_ptr<Service>>& services, const AttachServer* attach,
                                      bool draining);

}  // namespace pollcore::daemon
