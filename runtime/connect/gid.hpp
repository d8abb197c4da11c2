// Chooses the entry of a port's GID table for address handles and for connections by exchanged information.
#pragma once

#include <string>

#include "device/device.hpp"

namespace pollcore {

/// Returns the RoCE v2 GID of `address`, an IPv4 or IPv6 address as text. If `address` is empty, returns the first RoCE
/// v2 GID, or the first GID if there is no RoCE v2 GID. On a software device, each GID counts as RoCE v2. The GID table
/// is read at each call, because the index of an address may change. Throws Error if there is no such GID.
[[nodiscard]] GidEntry choose_gid(Device& device, const std::string& address);

}  // namespace pollcore
