#include "device/open_device.hpp"

#include <utility>

#include <fmt/format.h>

#include "device/soft/soft_device.hpp"
#include "device/verbs/verbs_device.hpp"

namespace pollcore {
namespace {

SoftProfile profile_of(DeviceConfig::Profile profile) {
    switch (profile) {
        case DeviceConfig::Profile::standard: return {};
        case DeviceConfig::Profile::rxe: return kRxeLike;
        case DeviceConfig::Profile::mlx5: return kMlx5Like;
    }
    throw Error(EINVAL, "a software device has a profile that this pollcore does not know");
}

std::unique_ptr<Device> open_soft(const DeviceConfig& config) {
    constexpr std::uint8_t kOnlyPort = 1;
    if (config.port != kOnlyPort) {
        throw Error(EINVAL, fmt::format("device '{}' has no port {}: a software device has port {} only", config.name,
                                        config.port, kOnlyPort));
    }
    SoftDeviceOptions options;
    options.name = config.name;
    options.profile = profile_of(config.profile);
    return open_soft_device(std::move(options));
}

}  // namespace

std::unique_ptr<Device> open_device(const DeviceConfig& config, bool to_share) {
    switch (config.kind) {
        case DeviceConfig::Kind::soft: return open_soft(config);
        case DeviceConfig::Kind::verbs: return VerbsDevice::open(config.verbs_name, config.port, to_share);
    }
    throw Error(EINVAL, fmt::format("device '{}' is of a kind that this pollcore does not know", config.name));
}

}  // namespace pollcore
