// Memory that devices may read and write.
//
// Thread safety: control calls; from any thread, one at a time per object. Reading data() and the keys needs
// no care.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"

namespace pollcore {

class ControlSide;
struct RegionInfo;

/// Access rights of a region, as IBV_ACCESS_* (ibv_reg_mr(3)). Local read is always allowed.
struct Access {
    bool local_write = true;
    bool remote_read = false;
    bool remote_write = false;   ///< needs local_write
    bool remote_atomic = false;  ///< needs local_write
    bool window_bind = false;    ///< memory windows may be bound to it (IBV_ACCESS_MW_BIND)
    /// A device that supports it may write a peer's bytes in another order than they arrive
    /// (IBV_ACCESS_RELAXED_ORDERING). A completion still means that all of its bytes are written. Do not poll such
    /// memory for the end of a message.
    bool relaxed_ordering = false;

    /// The device may write; peers have no access through the remote key.
    [[nodiscard]] static constexpr Access local() noexcept { return {}; }
    /// Also remote reads, writes and atomics.
    [[nodiscard]] static constexpr Access all() noexcept { return {true, true, true, true}; }
};

/// A protection domain: a QP reaches only regions of its own domain. Each device has a default one.
class POLLCORE_API ProtectionDomain {
public:
    ProtectionDomain() = default;
    POLLCORE_INTERNAL ProtectionDomain(std::shared_ptr<ControlSide> control, std::uint32_t id) noexcept;
    ~ProtectionDomain();
    ProtectionDomain(ProtectionDomain&&) noexcept = default;
    ProtectionDomain& operator=(ProtectionDomain&& other) noexcept;

    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }

private:
    std::shared_ptr<ControlSide> control_;
    std::uint32_t id_ = 0;
};

/// A registered range of memory. Owns the registration, and the memory too if Context::allocate made it.
class POLLCORE_API MemoryRegion {
public:
    MemoryRegion() = default;
    /// Made by Context.
    POLLCORE_INTERNAL MemoryRegion(std::shared_ptr<ControlSide> control, const RegionInfo& info) noexcept;
    [[nodiscard]] POLLCORE_INTERNAL std::uint64_t id() const noexcept { return id_; }
    /// Called by Context when a pool takes the region over: the pool ends it.
    POLLCORE_INTERNAL void give_away() noexcept { control_.reset(); }
    ~MemoryRegion();
    MemoryRegion(MemoryRegion&& other) noexcept;
    MemoryRegion& operator=(MemoryRegion&& other) noexcept;

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
    /// The address of the first byte for work requests and peers: data(), or the iova that it was registered with.
    [[nodiscard]] std::uint64_t addr() const noexcept { return iova_; }
    [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }
    /// Names the region in a bind (WindowBind). Not valid unless it was registered with Access::window_bind.
    [[nodiscard]] MrHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Ends the registration and, if the runtime allocated it, the memory. Throws Error(EBUSY) while submitted work
    /// requests name this region. While windows are bound to it, throws the device's error (EBUSY, or EINVAL on
    /// Soft-RoCE). When it throws, nothing has changed. The destructor does the same, except that it leaves a region in
    /// use to the runtime, which ends it when it stops.
    void deregister();

private:
    std::shared_ptr<ControlSide> control_;
    std::uint64_t id_ = 0;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::uint64_t iova_ = 0;
    std::uint32_t lkey_ = 0;
    std::uint32_t rkey_ = 0;
    MrHandle handle_{};
};

/// Values of `enum ibv_mw_type` (ibv_alloc_mw(3)).
enum class WindowType : std::uint8_t {
    type_1 = 1,  ///< for all queue pairs of its protection domain; each bind moves it
    type_2 = 2,  ///< for the queue pair that it is bound on, until it is invalidated; the program chooses its keys
};

/// A memory window: a part of a region with a key of its own, which work requests bind and end (Opcode::bind_mw,
/// local_inv, send_with_inv) without a control call. Belongs to a protection domain and to one worker's queue pairs.
class POLLCORE_API MemoryWindow {
public:
    MemoryWindow() = default;
    /// Made by Context.
    POLLCORE_INTERNAL MemoryWindow(std::shared_ptr<ControlSide> control, MwHandle handle, WindowType type) noexcept;
    ~MemoryWindow();
    MemoryWindow(MemoryWindow&& other) noexcept;
    MemoryWindow& operator=(MemoryWindow&& other) noexcept;

    /// Names the window in a bind (WindowBind).
    [[nodiscard]] MwHandle handle() const noexcept { return handle_; }
    [[nodiscard]] WindowType type() const noexcept { return type_; }
    /// The key after the last bind that completed. The next bind changes it to next_rkey() of this key, or, for type 2,
    /// to the key that the bind asks for. When a queue pair is closed, a type 2 window whose last bind was on it opens
    /// nothing any more and gets another key, which differs in all bytes. So does a window of either type whose bind
    /// was flushed, or had not completed, when its queue pair was closed (D25). A control call; the completion of a
    /// bind has the key, too (Completion::window_rkey).
    [[nodiscard]] std::uint32_t rkey() const;
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Ends the window: its key opens nothing any more. Throws Error(EBUSY), and changes nothing, while binds of it are
    /// in flight. The destructor does the same, except that it leaves such a window to the runtime, which ends it when
    /// it stops.
    void deallocate();

private:
    std::shared_ptr<ControlSide> control_;
    MwHandle handle_{};
    WindowType type_ = WindowType::type_2;
};

}  // namespace pollcore
