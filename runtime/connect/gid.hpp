// Which entry of a port's GID table a connection by exchanged information uses.
#pragma once

#include <string>

#include "device/device.hpp"

namespace pollcore {

/// The GID of `address` (an IPv4 or IPv6 address as text), or the first RoCE v2 one when it is empty. The
/// index of an address moves, so it is looked up each time. Throws Error when there is none.
[[nodiscard]] GidEntry choose_gid(Device& device, const std::string& address);

}  // namespace pollcore
