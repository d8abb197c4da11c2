// The memory regions and memory windows of a device, found by key.
//
// Thread safety: the control side calls add() and remove(), one at a time. find(), find_remote(), bind() and
// invalidate() may run in any engine at any time, under that engine's lock. Between remove() and retire() the caller
// must lock and unlock each engine once: until then an engine may still use an entry that it found before.
// Invariants: a place in the table never gives the same key to two regions in a row. No region or window has key 0. The
// upper bits of a window's key are those of its place; each bind chooses the lowest eight bits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <infiniband/verbs.h>

#include "device/soft/spin_lock.hpp"
#include "pollcore/own_lines.hpp"

namespace pollcore::soft {

/// The memory that a key stands for. `iova` is the address that work requests use for the byte at `host`.
struct MemoryRegion {
    const ibv_pd* pd = nullptr;
    std::byte* host = nullptr;
    std::uint64_t iova = 0;
    std::uint64_t length = 0;
    int access = 0;
};

/// The device's own data of a memory window.
struct Window {
    const ibv_mw_type type;
    const ibv_pd* const pd;
    SpinLock lock{};  ///< guards the members below; a thread holds it while it uses memory through the window
    bool bound = false;
    const ibv_qp* qp = nullptr;    ///< type 2: peers reach the window only through this QP
    std::uint32_t region_key = 0;  ///< key of the region that the window is a part of
    /// The memory that the window opens to peers; `iova` is the address that the peers use.
    MemoryRegion range{};
};

/// The arguments of a bind: struct ibv_mw_bind_info, and the keys.
struct WindowBind {
    std::uint32_t key = 0;  ///< the window's old key
    std::uint32_t new_key = 0;
    std::uint32_t region_key = 0;
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    int access = 0;
};

/// The memory that a peer's request names. host() is null if the request may not use it. If the request's key names a
/// window, this object holds the window's lock as long as it lives. So when a bind or an invalidation completes, nobody
/// uses the old binding.
class RemoteMemory {
public:
    RemoteMemory() = default;
    explicit RemoteMemory(std::byte* host, SpinLock* held = nullptr) noexcept : host_(host), held_(held) {}
    ~RemoteMemory() {
        if (held_ != nullptr) [[unlikely]]
            held_->unlock();
    }
    RemoteMemory(const RemoteMemory&) = delete;
    RemoteMemory& operator=(const RemoteMemory&) = delete;

    [[nodiscard]] std::byte* host() const noexcept { return host_; }

private:
    std::byte* host_ = nullptr;
    SpinLock* held_ = nullptr;
};

class MemoryTable {
public:
    explicit MemoryTable(std::uint32_t regions_max);

    /// The new region's key, or 0 when the table is full.
    [[nodiscard]] std::uint32_t add(const MemoryRegion& region) { return add(region, nullptr); }
    /// The new window's first key, or 0 when the table is full. The window opens no memory until it is bound.
    [[nodiscard]] std::uint32_t add(Window& window) { return add({}, &window); }
    /// From now on this key is not found, and neither is any other key that differs only in the lowest eight bits.
    void remove(std::uint32_t key) noexcept;
    /// Undoes remove().
    void restore(std::uint32_t key) noexcept;
    /// Frees the key's place for another region or window.
    void retire(std::uint32_t key) noexcept;
    /// Number of windows bound to the region.
    [[nodiscard]] std::uint32_t windows_of(std::uint32_t key) const noexcept;
    /// Ends the window's binding. The window keeps its key. If `qp` is not null, only a binding to this QP is ended.
    void unbind(Window& window, const ibv_qp* qp = nullptr) noexcept;

    /// The memory at [address, address + length). Null if the key, `pd`, the region's bounds or its access rights do
    /// not permit all of `access` there. `length` is not 0.
    [[nodiscard]] std::byte* find(std::uint32_t key, const ibv_pd* pd, std::uint64_t address, std::uint64_t length,
                                  int access) const noexcept {
        const std::uint32_t index = key >> kKeyBits;
        if (index >= regions_max_) [[unlikely]]
            return nullptr;
        const Entry& entry = entries_[index];
        // Acquire: pairs with the release in add(); the region's fields were written before its key.
        if (entry.key.load(std::memory_order_acquire) != key || key == 0) [[unlikely]]
            return nullptr;
        const MemoryRegion& region = entry.region;
        const std::uint64_t offset = address - region.iova;
        if (region.pd != pd || offset > region.length || length > region.length - offset ||
            (region.access & access) != access) [[unlikely]] {
            return nullptr;
        }
        return region.host + offset;
    }

    /// find() for a peer's request that came over `qp`. The key may also name a window.
    [[nodiscard]] RemoteMemory find_remote(std::uint32_t key, const ibv_qp& qp, std::uint64_t address,
                                           std::uint64_t length, int access) const noexcept {
        if (std::byte* host = find(key, qp.pd, address, length, access); host != nullptr) [[likely]]
            return RemoteMemory(host);
        return find_window(key, qp, address, length, access);
    }

    /// Carries out a bind that was posted to `qp`. Returns false, and changes nothing, if the specification forbids the
    /// bind (IBTA 10.6.7.2). Forbidden are, among others, a window or region of another PD, a region without
    /// IBV_ACCESS_MW_BIND, a range that exceeds the region, remote write or atomic access to a region without local
    /// write access, and a type 2 window that is bound already or would be empty.
    [[nodiscard]] bool bind(const WindowBind& bind, const ibv_qp& qp) noexcept;
    /// Ends the binding of the type 2 window with this key, for a request on `qp`. Returns false if no window with this
    /// key is bound to `qp`.
    [[nodiscard]] bool invalidate(std::uint32_t key, const ibv_qp& qp) noexcept;

private:
    static constexpr std::uint32_t kKeyBits = 8;

    struct Entry {
        std::atomic<std::uint32_t> key{0};
        std::uint8_t last_variant = 0;
        std::atomic<std::uint32_t> windows{0};  ///< number of windows bound to this region
        Window* window = nullptr;  ///< not null: the entry stands for this window, and `region` is not used
        MemoryRegion region;
    };

    [[nodiscard]] std::uint32_t add(const MemoryRegion& region, Window* window);
    [[nodiscard]] RemoteMemory find_window(std::uint32_t key, const ibv_qp& qp, std::uint64_t address,
                                           std::uint64_t length, int access) const noexcept;
    /// The window of this key, with its lock held; null when there is none.
    [[nodiscard]] Window* lock_window(std::uint32_t key) const noexcept;
    void close(Window& window) noexcept;

    const std::uint32_t regions_max_;
    OwnLines<Entry> entries_;
    std::vector<std::uint32_t> free_;
};

}  // namespace pollcore::soft
