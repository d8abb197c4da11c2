// Opening the device that a configuration names.
#pragma once

#include <memory>

#include "device/device.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

/// Throws pollcore::Error, which for a verbs device that does not exist says which devices there are.
[[nodiscard]] std::unique_ptr<Device> open_device(const DeviceConfig& config);

}  // namespace pollcore
