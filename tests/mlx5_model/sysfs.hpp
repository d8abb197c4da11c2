// The tree in which libibverbs finds the devices: a directory of this process, at SYSFS_PATH.
#pragma once

#include <cstdint>
#include <string_view>

namespace mlx5_model {

struct DeviceFacts;

/// Makes the tree. Called when a library begins to look for devices.
void make_sysfs();
/// Sets one of the port's hardware counters.
void set_counter(const DeviceFacts& device, std::string_view name, std::uint64_t value);

}  // namespace mlx5_model
