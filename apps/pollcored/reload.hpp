// What of a configuration can change while the daemon runs.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "pollcore/config.hpp"

namespace pollcore::daemon {

/// The keys that differ and that only a restart can apply, such as "worker[0].core".
[[nodiscard]] std::vector<std::string> needs_restart(const Config& running, const Config& wanted);

/// Those services of `from` that `other` has not exactly so.
[[nodiscard]] std::vector<ServiceConfig> services_missing(const Config& from, const Config& other);

}  // namespace pollcore::daemon
