#include "device_files.hpp"

#include <sys/sysmacros.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "hca_fabric.hpp"
#include "ucma.hpp"
#include "uverbs_file.hpp"

namespace mlx5_model {
namespace {

constexpr std::string_view kDirectory = "/dev/infiniband/";
constexpr std::string_view kRdmaCm = "/dev/infiniband/rdma_cm";

const DeviceFacts* device_at(std::string_view path) {
    for (const DeviceFacts& device : devices()) {
        if (path == device.file) {
            return &device;
        }
    }
    return nullptr;
}

}  // namespace

std::optional<dev_t> device_file(const char* path) {
    // Nearly all paths return here, before any lookup. Early in the life of a process a lookup may not be possible yet.
    if (path == nullptr || std::strncmp(path, kDirectory.data(), kDirectory.size()) != 0) {
        return std::nullopt;
    }
    if (path == kRdmaCm) {
        return makedev(kMiscMajor, kRdmaCmMinor);
    }
    const DeviceFacts* device = device_at(path);
    return device == nullptr ? std::nullopt : std::optional(makedev(kUverbsMajor, device->minor));
}

std::optional<int> open_device_file(const char* path) {
    if (!device_file(path)) {
        return std::nullopt;
    }
    try {
        return path == kRdmaCm ? open_rdma_cm() : UverbsFile::open(*Fabric::get().hca(device_at(path)->name));
    } catch (const std::system_error& error) {
        return -error.code().value();
    }
}

}  // namespace mlx5_model
