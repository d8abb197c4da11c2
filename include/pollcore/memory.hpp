// Memory that devices may read and write.
//
// Thread safety: any thread may make any call, one at a time per object. data() and the keys may also be read at any
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

class ControlSide;
struct RegionInfo;

/// Access rights of a region, as IBV_ACCESS_* (ibv_reg_mr(3)). Local read is always allowed.
struct Access {
    bool local_write = true;
    bool remote_read = false;
    bool remote_write = false;   ///< needs local_write
    bool remote_atomic = false;  ///< needs local_write
    bool window_bind = false;    ///< memory windows may be bound to the region (IBV_ACCESS_MW_BIND)
    /// A device that supports this right may write a peer's bytes to memory in another order than they arrive
    /// (IBV_ACCESS_RELAXED_ORDERING). A completion still means that all bytes of its message are written. Do not poll
    /// such memory for the end of a message.
    bool relaxed_ordering = false;

    /// The device may write; peers have no access through the remote key.
    [[nodiscard]] static constexpr Access local() noexcept { return {}; }
    /// The device may write, and peers may use remote reads, writes and atomics.
    [[nodiscard]] static constexpr Access all() noexcept { return {true, true, true, true}; }
};

/// A range of a dma-buf: memory of another device, for example a GPU.
struct DmabufRange {
    int fd = -1;               ///< the dma-buf's descriptor; may be closed after the registration
    std::uint64_t offset = 0;  ///< bytes from the dma-buf's begin
    std::size_t bytes = 0;
};

/// A protection domain: a QP reaches only regions of its own domain. Each device has a default domain.
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

/// A registered range of memory. Owns the registration. Also owns the memory, if Context::allocate made it.
class POLLCORE_API MemoryRegion {
public:
    MemoryRegion() = default;
    /// Made by Context.
    POLLCORE_INTERNAL MemoryRegion(std::shared_ptr<ControlSide> control, const RegionInfo& info) noexcept;
    [[nodiscard]] POLLCORE_INTERNAL std::uint64_t id() const noexcept { return id_; }
    /// Called by Context when a pool takes over the region: from then on the pool owns the region.
    POLLCORE_INTERNAL void give_away() noexcept { control_.reset(); }
    ~MemoryRegion();
    MemoryRegion(MemoryRegion&& other) noexcept;
    MemoryRegion& operator=(MemoryRegion&& other) noexcept;

    /// Null for a range of a dma-buf, which the program has not mapped.
    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// Not for a range of a dma-buf.
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
    /// The address of the first byte for work requests and peers: data(), or the iova of the registration.
    [[nodiscard]] std::uint64_t addr() const noexcept { return iova_; }
    [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }
    /// `length` bytes of the region, for a work request. `offset` counts from the region's first byte.
    [[nodiscard]] Sge sge(std::size_t offset, std::uint32_t length) const noexcept {
        return {addr() + offset, length, lkey()};
    }
    /// The region from `offset` on, as a peer names it in an RDMA operation or an atomic.
    [[nodiscard]] RemoteMemory remote(std::size_t offset = 0) const noexcept { return {addr() + offset, rkey()}; }
    /// Names the region in a bind (WindowBind). Valid only if the region was registered with Access::window_bind.
    [[nodiscard]] MrHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Ends the registration, and frees the memory if the runtime allocated it. Throws Error(EBUSY) while submitted
    /// work requests name this region. While windows are bound to the region, throws the device's error (EBUSY, or
    /// EINVAL on Soft-RoCE). When this call throws, nothing has changed. The destructor does the same. If the region is
    /// in use then, the runtime ends it when the runtime stops.
    ///
    /// Binds always keep a region in use. Other requests of a queue pair that is driven by hand
    /// (QueuePairOptions::by_hand) do not, and fail when they need a region that is gone. Nor do the receives of a
    /// shared receive queue, if at least one queue pair has used the queue so far, and all that have used it are driven
    /// by hand. The software device, Soft-RoCE and mlx5 allow this, because the code of these providers can be kept
    /// from the memory of requests. With any other provider all requests keep their regions.
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
    type_1 = 1,  ///< usable by all queue pairs of its protection domain; each bind moves the window
    /// Usable only by the queue pair that the window is bound on, until the window is invalidated. The program chooses
    /// the lowest byte of the key.
    type_2 = 2,
};

/// A memory window opens a part of a region to peers, under a key of its own. Work requests bind the window and end the
/// binding (Opcode::bind_mw, local_inv, send_with_inv), without a control call. A window belongs to a protection
/// domain, and only queue pairs of one worker may use it.
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
    /// The key after the last bind that completed. The next bind changes the key to next_rkey() of this key or, for
    /// type 2, to the key that the bind asks for. This call blocks (context.hpp). The completion of a bind has the new
    /// key, too (Completion::window_rkey).
    ///
    /// When a queue pair is closed or reset, two kinds of windows get another key, which may differ in all bytes. The
    /// old key then opens nothing (D25). The first kind is a type 2 window whose last bind was on that queue pair. The
    /// second kind is a window of either type with a bind on that queue pair that was flushed or had not completed.
    [[nodiscard]] std::uint32_t rkey() const;
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Ends the window: its key then opens nothing. Throws Error(EBUSY), and changes nothing, while binds of the window
    /// are in flight. The destructor does the same. If binds are in flight then, the runtime ends the window when the
    /// runtime stops.
    void deallocate();

private:
    std::shared_ptr<ControlSide> control_;
    MwHandle handle_{};
    WindowType type_ = WindowType::type_2;
};

}  // namespace pollcore
