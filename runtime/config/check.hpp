// The checks of a whole configuration, and the entry points that name the machine to check against: the
// public functions of pollcore/config.hpp call these with the CPUs of this process.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "config/cpus.hpp"
#include "config/refusal.hpp"
#include "pollcore/config.hpp"

namespace pollcore::config {

/// Throws ConfigError at the first value that its rule refuses, then at the first that contradicts another.
void check(const Config& config, const Cpus& cpus, const Origin& origin);

[[nodiscard]] Config parse(std::string_view text, const std::string& name, const Cpus& cpus);

}  // namespace pollcore::config
