// The configuration to judge a host for.
//
// Thread safety: any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "pollcore/config.hpp"
#include "tree.hpp"

namespace pollcore::doctor {

struct WantedConfig {
    std::optional<Config> config;
    std::string refused;  ///< why this host refuses the configuration, which another host accepts; else empty
};

/// Reads the file as the runtime's loader does, for the CPUs of the tree's host. A configuration that only those CPUs
/// do not fit is judged all the same. Without `must_exist` there may be no such file. Throws ConfigError if no host
/// accepts the file.
[[nodiscard]] WantedConfig wanted_config(const std::filesystem::path& file, bool must_exist, const Tree& tree);

}  // namespace pollcore::doctor
