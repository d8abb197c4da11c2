// The memory regions of a device, found by key.
//
// Thread safety: add() and remove() are called by the control side, one at a time. find() may run in any
// engine at any time, under that engine's lock. The caller of remove() must take and give back each engine's
// lock before retire(): until then an engine may still be using the entry it found.
// Invariants: a key is never given twice in a row for a place; key 0 is nobody's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pollcore/own_lines.hpp"

struct ibv_pd;

namespace pollcore::soft {

/// What a key stands for. `iova` is the address that work requests use for the byte at `host`.
struct MemoryRegion {
    const ibv_pd* pd = nullptr;
    std::byte* host = nullptr;
    std::uint64_t iova = 0;
    std::uint64_t length = 0;
    int access = 0;
};

class MemoryTable {
public:
    explicit MemoryTable(std::uint32_t regions_max);

    /// The new region's key, or 0 when the table is full.
    [[nodiscard]] std::uint32_t add(const MemoryRegion& region);
    /// From now on find() does not know the key.
    void remove(std::uint32_t key) noexcept;
    /// The place may be used again.
    void retire(std::uint32_t key) noexcept;

    /// The byte at [address, address + length) if the key, its PD, its bounds and all bits of `access`
    /// permit it, else null. length is not 0.
    [[nodiscard]] std::byte* find(std::uint32_t key, const ibv_pd* pd, std::uint64_t address,
                                  std::uint64_t length, int access) const noexcept {
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

private:
    static constexpr std::uint32_t kKeyBits = 8;

    struct Entry {
        std::atomic<std::uint32_t> key{0};
        std::uint8_t last_variant = 0;
        MemoryRegion region;
    };

    const std::uint32_t regions_max_;
    OwnLines<Entry> entries_;
    std::vector<std::uint32_t> free_;
};

}  // namespace pollcore::soft
