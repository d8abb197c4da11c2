// Compares two configurations: which changes need a restart of the daemon, and which services differ.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "pollcore/config.hpp"

namespace pollcore::daemon {

/// The keys that differ and need a restart, such as "worker[0].core".
[[nodiscard]] std::vector<std::string> needs_restart(const Config& running, const Config& wanted);

/// The services of `from` that `other` does not contain with exactly the same values.
[[nodiscard]] std::vector<ServiceConfig> services_missing(const Config& from, const Config& other);

}  // namespace pollcore::daemon
