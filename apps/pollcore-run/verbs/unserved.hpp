// Verbs that are not served. Each says so once, and returns EOPNOTSUPP as a provider does that does not have them.
//
// Thread safety: any thread.
#pragma once

#include "plain_verbs.hpp"

namespace pollcore::served {

void install_unserved(verbs_context& verbs) noexcept;

}  // namespace pollcore::served
