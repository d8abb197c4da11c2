// The files under /dev/infiniband that the model replaces.
#pragma once

#include <sys/types.h>

#include <optional>

namespace mlx5_model {

// The major numbers are from the kernel's Documentation/admin-guide/devices.txt.
inline constexpr unsigned kUverbsMajor = 231;
inline constexpr unsigned kMiscMajor = 10;
inline constexpr unsigned kRdmaCmMinor = 58;

/// Returns the device number of the file at `path`, or nullopt if the file is not the model's.
std::optional<dev_t> device_file(const char* path);
/// Returns a new descriptor of the model's file at `path`, or -errno. Returns nullopt if the file is not the model's.
std::optional<int> open_device_file(const char* path);

}  // namespace mlx5_model
