// Which entry of a port's GID table a connection by exchanged information uses.
#pragma once

#include <string>

#include "device/device.hpp"

namespace pollcore {

/// The GID of `address` (an IPv4 or IPv6 address as text), or, if it is empty, the first RoCE v2 GID. The index of an
/// address may change, so it is looked up each time. Throws Error when there is no such GID.
[[nodiscard]] GidEntry choose_gid(Device& device, const std::string& address);

}  // namespace pollcore
