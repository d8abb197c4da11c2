// Opens the device that a configuration names.
#pragma once

#include <memory>

#include "device/device.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

/// Throws pollcore::Error. If a verbs device does not exist, the error lists the devices that do. With `to_share`,
/// Device::share() may be called.
[[nodiscard]] std::unique_ptr<Device> open_device(const DeviceConfig& config, bool to_share = false);

}  // namespace pollcore
