// Opens the device that a configuration names.
#pragma once

#include <memory>

#include "device/device.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

/// Throws pollcore::Error. If a verbs device does not exist, the error lists the devices that do.
[[nodiscard]] std::unique_ptr<Device> open_device(const DeviceConfig& config);

}  // namespace pollcore
