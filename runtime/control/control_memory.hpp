// The memory of a queue pair's flow control that the peer writes to: the control block, followed by
// FlowParts::entries.
//
// Thread safety: only the control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/host_memory.hpp"
#include "base/log.hpp"
#include "device/device.hpp"

namespace pollcore {

/// Owns the memory and its registrations. Destroy it after the queue pair. If a registration does not end, the device
/// may still write to the memory, so the memory is never given back.
class ControlMemory {
public:
    ControlMemory() = default;
    explicit ControlMemory(HostMemory memory) noexcept : memory_(std::move(memory)) {}
    ~ControlMemory() {
        for (Registration* each : {&block_, &entries_}) {
            if (each->mr != nullptr && !each->device->close_off(each->mr)) {
                log_error("{} keeps {} bytes of flow control registered: they stay allocated", each->device->describe(),
                          memory_.size());
                memory_.disown();
            }
        }
    }
    ControlMemory(ControlMemory&& other) noexcept { *this = std::move(other); }
    ControlMemory& operator=(ControlMemory&& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(block_, other.block_);
        std::swap(entries_, other.entries_);
        return *this;
    }

    [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.data()); }
    [[nodiscard]] std::uint64_t addr() const noexcept { return reinterpret_cast<std::uintptr_t>(data()); }
    /// These register bytes from `offset` on, under their own address. They throw Error.
    void register_block(Device& device, ibv_pd* pd, std::size_t offset, std::size_t bytes, int access) {
        block_ = registered(device, pd, offset, bytes, access);
    }
    void register_entries(Device& device, ibv_pd* pd, std::size_t offset, std::size_t bytes, int access) {
        entries_ = registered(device, pd, offset, bytes, access);
    }
    [[nodiscard]] const ibv_mr& block() const noexcept { return *block_.mr; }
    [[nodiscard]] const ibv_mr& entries() const noexcept { return *entries_.mr; }

private:
    struct Registration {
        Device* device = nullptr;
        ibv_mr* mr = nullptr;
    };
    [[nodiscard]] Registration registered(Device& device, ibv_pd* pd, std::size_t offset, std::size_t bytes,
                                          int access) const {
        return {&device, device.register_memory(pd, data() + offset, bytes, addr() + offset, access)};
    }

    HostMemory memory_;
    Registration block_;
    Registration entries_;
};

}  // namespace pollcore
