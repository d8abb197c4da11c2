// The checks of a whole configuration, and the entry points that name the machine to check against: the
// public functions of pollcore/config.hpp call these with the CPUs of this process.
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

/// Throws ConfigError at the first value that its rule refuses, then at the first that contradicts another.
void check(const Config& config, const Cpus& cpus, const Origin& origin);

/// Throws ConfigError where runtime.lock_directory or attach.path does not fit the file system of this machine.
void check_paths(const Config& config, const Origin& origin);

/// Reads a file that a daemon is to start with on this machine: load_config and check_paths. Throws ConfigError.
[[nodiscard]] Config load_and_check_paths(const std::filesystem::path& file);

[[nodiscard]] Config load(const std::filesystem::path& file, const Cpus& cpus);
[[nodiscard]] Config parse(std::string_view text, const std::string& name, const Cpus& cpus);

}  // namespace pollcore::config
