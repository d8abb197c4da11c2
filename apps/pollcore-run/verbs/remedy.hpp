// What to do when a process cannot attach to pollcored for its verbs.
//
// Thread safety: pure functions.
#pragma once

#include <string>

namespace pollcore::served {

/// A sentence for an errno value that Attachment's constructor has thrown.
[[nodiscard]] std::string remedy(int error, const std::string& socket);

}  // namespace pollcore::served
