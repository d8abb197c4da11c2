// Memory that devices may read and write.
//
// Thread safety: control calls; from any thread, one at a time per object. Reading data() and the keys needs
// no care.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace pollcore {

class RuntimeState;

/// What may be done with a region, as IBV_ACCESS_* (ibv_reg_mr(3)). Local read is always allowed.
struct Access {
    bool local_write = true;
    bool remote_read = false;
    bool remote_write = false;   ///< needs local_write
    bool remote_atomic = false;  ///< needs local_write

    [[nodiscard]] static constexpr Access all() noexcept { return {true, true, true, true}; }
};

/// A protection domain: QPs reach only regions of their own. Each device has a default one.
class ProtectionDomain {
public:
    ProtectionDomain() = default;
    ProtectionDomain(std::shared_ptr<RuntimeState> runtime, std::uint32_t id) noexcept;
    ~ProtectionDomain();
    ProtectionDomain(ProtectionDomain&&) noexcept = default;
    ProtectionDomain& operator=(ProtectionDomain&& other) noexcept;

    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }

private:
    std::shared_ptr<RuntimeState> runtime_;
    std::uint32_t id_ = 0;
};

/// A registered range of memory. Owns the registration, and the memory too if Runtime::allocate made it.
class MemoryRegion {
public:
    MemoryRegion() = default;
    ~MemoryRegion();
    MemoryRegion(MemoryRegion&& other) noexcept;
    MemoryRegion& operator=(MemoryRegion&& other) noexcept;

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
    [[nodiscard]] std::uint64_t addr() const noexcept { return reinterpret_cast<std::uintptr_t>(data_); }
    [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }
    [[nodiscard]] bool valid() const noexcept { return runtime_ != nullptr; }

    /// Ends the registration and, if the runtime allocated it, the memory. Throws Error(EBUSY) while work
    /// requests that were submitted before name this region; nothing has changed then. The destructor does
    /// the same, except that it leaves a region that is in use to the runtime, which ends it when it stops.
    void deregister();

private:
    friend class RuntimeState;
    std::shared_ptr<RuntimeState> runtime_;
    std::uint64_t id_ = 0;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::uint32_t lkey_ = 0;
    std::uint32_t rkey_ = 0;
};

}  // namespace pollcore
