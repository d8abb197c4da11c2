// Checks a configuration. check(), load() and parse() take the CPUs of a machine as a parameter. The public functions
// of pollcore/config.hpp call them with the CPUs of this process.
//
// Thread safety: any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "config/cpus.hpp"
#include "config/refusal.hpp"
#include "pollcore/config.hpp"

namespace pollcore::config {

/// First checks each value by its rule, and then values that may contradict each other. Throws ConfigError for the
/// first mistake.
void check(const Config& config, const Cpus& cpus, const Origin& origin);

/// Throws ConfigError if runtime.lock_directory or attach.path does not fit the file system of this machine.
void check_paths(const Config& config, const Origin& origin);

/// Reads the file with which a daemon is to start on this machine: as load_config(), and then calls check_paths().
/// Throws ConfigError.
[[nodiscard]] Config load_and_check_paths(const std::filesystem::path& file);

[[nodiscard]] Config load(const std::filesystem::path& file, const Cpus& cpus);
[[nodiscard]] Config parse(std::string_view text, const std::string& name, const Cpus& cpus);

}  // namespace pollcore::config
