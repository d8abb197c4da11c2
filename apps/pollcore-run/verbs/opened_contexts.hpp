// All contexts of this process, for events of the daemon and for fork(2).
//
// Thread safety: any thread.
#pragma once

#include "opened_device.hpp"

namespace pollcore::served {

void add_context(Opened& opened);
void remove_context(Opened& opened) noexcept;

}  // namespace pollcore::served
