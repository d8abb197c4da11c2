// Configurations for a test that has a runtime and an attach server in its own process.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "pollcore/config.hpp"
#include "test_cpus.hpp"

namespace pollcore::test {

inline Config one_soft_device(std::uint32_t qps_max) {
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    config.devices.push_back({.name = "net0"});
    config.workers.push_back({.name = "w0", .core = last_cpu(), .idle = IdlePolicy::yield});
    config.qps_max = qps_max;
    config.log_level = LogLevel::error;
    return config;
}

/// The socket's path contains the process id, so no other process uses it.
inline AttachConfig socket_named(const std::string& name) {
    AttachConfig config;
    config.path = std::filesystem::temp_directory_path() / ("pollcore-" + name + "-" + std::to_string(::getpid()));
    return config;
}

}  // namespace pollcore::test
