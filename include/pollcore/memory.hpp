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

/// What may be done with a region, as IBV_ACCESS_* (ibv_reg_mr(3)). Local read is always allowed.
struct Access {
    bool local_write = true;
    bool remote_read = false;
    bool remote_write = false;   ///< needs local_write
    bool remote_atomic = false;  ///< needs local_write
    bool window_bind = false;    ///< memory windows may be bound to it (IBV_ACCESS_MW_BIND)
    /// The device may write in another order than a peer's bytes came in, where it can (IBV_ACCESS_RELAXED_ORDERING);
    /// a completion still stands for all of them. Nobody may poll such memory for the end of a message.
    bool relaxed_ordering = false;

    /// The device writes what arrives; peers reach nothing by its remote key.
    [[nodiscard]] static constexpr Access local() noexcept { return {}; }
    /// All that peers may do, too.
    [[nodiscard]] static constexpr Access all() noexcept { return {true, true, true, true}; }
};

/// A protection domain: QPs reach only regions of their own. Each device has a default one.
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
    /// By Context.
    POLLCORE_INTERNAL MemoryRegion(std::shared_ptr<ControlSide> control, const RegionInfo& info) noexcept;
    [[nodiscard]] POLLCORE_INTERNAL std::uint64_t id() const noexcept { return id_; }
    /// By Context: the pool that it became ends it.
    POLLCORE_INTERNAL void give_away() noexcept { control_.reset(); }
    ~MemoryRegion();
    MemoryRegion(MemoryRegion&& other) noexcept;
    MemoryRegion& operator=(MemoryRegion&& other) noexcept;

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
    /// What work requests and peers call the first byte: its address, or the iova that it was registered with.
    [[nodiscard]] std::uint64_t addr() const noexcept { return iova_; }
    [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }
    /// What a bind names it by; not valid unless it was registered with Access::window_bind.
    [[nodiscard]] MrHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Ends the registration and, if the runtime allocated it, the memory. Throws Error(EBUSY) while work
    /// requests that were submitted before name this region, and, with what the device says (EBUSY, or EINVAL on
    /// Soft-RoCE), while windows are bound to it; nothing has changed then. The destructor does the same, except that
    /// it leaves a region that is in use to the runtime, which ends it when it stops.
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
    type_1 = 1,  ///< for all queue pairs of its protection domain; moves from bind to bind
    type_2 = 2,  ///< for the queue pair that it is bound on, until it is invalidated; its keys are the program's choice
};

/// A memory window: a part of a region with a key of its own, which work requests bind and end (Opcode::bind_mw,
/// local_inv, send_with_inv) without a control call. Belongs to a protection domain and to one worker's queue pairs.
class POLLCORE_API MemoryWindow {
public:
    MemoryWindow() = default;
    /// By Context.
    POLLCORE_INTERNAL MemoryWindow(std::shared_ptr<ControlSide> control, MwHandle handle, WindowType type) noexcept;
    ~MemoryWindow();
    MemoryWindow(MemoryWindow&& other) noexcept;
    MemoryWindow& operator=(MemoryWindow&& other) noexcept;

    /// What a bind names it by.
    [[nodiscard]] MwHandle handle() const noexcept { return handle_; }
    [[nodiscard]] WindowType type() const noexcept { return type_; }
    /// The key after the last bind that completed; the next one gives it next_rkey() of this, or what a bind of type 2
    /// asks for. A type 2 window whose last bind was on a queue pair that has been closed opens nothing and has another
    /// key, in all its bytes; so does a window of either type whose bind the device had flushed, or not completed, when
    /// its queue pair was closed. Asked of the runtime; the completion of a bind says it too.
    [[nodiscard]] std::uint32_t rkey() const;
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Ends the window; what it opened is closed. Throws Error(EBUSY) while binds of it are in flight; nothing has
    /// changed then. The destructor does the same, except that it leaves such a window to the runtime, which ends it
    /// when it stops.
    void deallocate();

private:
    std::shared_ptr<ControlSide> control_;
    MwHandle handle_{};
    WindowType type_ = WindowType::type_2;
};

}  // namespace pollcore
