// Log lines about what the daemon found and decided at its start.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"
#include "service.hpp"

namespace pollcore::daemon {

/// Devices, memory, EAL, and the workers with core and idle policy. `service_cpus`: the CPUs of all other threads.
void log_runtime(const Runtime& runtime, const std::string& service_cpus);
void log_services(const std::vector<std::unique_ptr<Service>>& services);

/// At the end: how many processes were attached, and how they ended.
void log_attached(const AttachCounts& counts);

/// "2 services, 5 connections, 3 processes attached": for the service manager. `attach`: null when nobody may attach.
[[nodiscard]] std::string status_line(const std::vector<std::unique_ptr<Service>>& services,
                                      const AttachServer* attach);

}  // namespace pollcore::daemon
