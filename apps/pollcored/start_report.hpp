// What the daemon found and decided at its start, as log lines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "service.hpp"

namespace pollcore::daemon {

/// Devices, memory, EAL, and the workers with core and idle policy. `service_cpus`: where all else runs.
void log_runtime(const Runtime& runtime, const std::string& service_cpus);
void log_services(const std::vector<std::unique_ptr<Service>>& services);

/// In the end: who was attached, and how they went.
void log_attached(const AttachCounts& counts);

/// "2 services, 5 connections, 3 processes attached": for the service manager. `attach`: null when nobody may.
[[nodiscard]] std::string status_line(const std::vector<std::unique_ptr<Service>>& services,
                                      const AttachServer* attach);

}  // namespace pollcore::daemon
