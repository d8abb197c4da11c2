// What the daemon found and decided at its start, as log lines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pollcore/runtime.hpp"
#include "service.hpp"

namespace pollcore::daemon {

/// Devices, memory, EAL, and the workers with core and idle policy. `service_cpus`: where all else runs.
void log_runtime(const Runtime& runtime, const std::string& service_cpus);
void log_services(const std::vector<std::unique_ptr<Service>>& services);

/// "2 services, 5 connections": for the service manager.
[[nodiscard]] std::string status_line(const std::vector<std::unique_ptr<Service>>& services);

}  // namespace pollcore::daemon
