// This process's attachment to pollcored, and the devices that the daemon serves.
//
// The process attaches when it asks for devices for the first time. A child of fork(2) cannot use what its parent has
// made, and attaches anew when it asks itself.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plain_verbs.hpp"
#include "pollcore/attach.hpp"

namespace pollcore::served {

/// A device as programs see it. It lives as long as the process, because programs may keep ibv_device pointers.
struct Device {
    ibv_device verbs{};
    /// libmlx5 looks behind an ibv_device for the provider that made it, and must find none.
    void* nobody[64] = {};
    std::string name;  ///< in the daemon's configuration
    DeviceAttributes attributes;
    int index = -1;
    std::uint8_t port_num = 1;
    std::uint8_t link_layer = 0;  ///< of the port: IBV_LINK_LAYER_*
    bool kernel = false;          ///< the kernel has the device, too
};

/// The devices that the daemon serves; attaches first, if need be. Empty if there is no daemon, which is told once.
[[nodiscard]] std::vector<Device*> served_devices();

/// The device whose ibv_device this is, or a null pointer.
[[nodiscard]] Device* served_device(const ibv_device* device) noexcept;

/// Throws Error if this process cannot attach.
[[nodiscard]] Attachment& daemon();

/// The device file of a served device ("/dev/infiniband/uverbs0"), which need not be there. Does not attach.
[[nodiscard]] bool is_served_file(const char* path) noexcept;

/// POLLCORE_VERBS=beside: the kernel's devices that the daemon serves are listed, too, and the served ones have names
/// of their own.
[[nodiscard]] bool lists_beside() noexcept;

/// POLLCORE_VERBS_WORKER: the worker of all completion queues; empty: the daemon chooses.
[[nodiscard]] const std::string& worker_wanted();

}  // namespace pollcore::served
