// Reads and writes the memory of a list of SGEs as if it were one run of bytes. Each use checks the SGEs against the
// memory table.
//
// Thread safety: the caller holds the lock of its engine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <infiniband/verbs.h>

#include "device/soft/copy.hpp"
#include "device/soft/memory_table.hpp"

namespace pollcore::soft {

/// Calls `piece(host, part)` in order for each part of the SGEs' memory that belongs to the byte range [offset, offset
/// + size). Returns false when an SGE of that range is not allowed. An SGE is checked as a whole; an empty SGE needs no
/// key.
template <class Piece>
[[nodiscard]] inline bool for_each_piece(const MemoryTable& memory, const ibv_pd* pd, std::span<const ibv_sge> sges,
                                         int access, std::uint64_t offset, std::uint64_t size, Piece&& piece) noexcept {
    for (const ibv_sge& sge : sges) {
        if (size == 0)
            return true;
        if (offset >= sge.length) {
            offset -= sge.length;
            continue;
        }
        std::byte* host = memory.find(sge.lkey, pd, sge.addr, sge.length, access);
        if (host == nullptr)
            return false;
        const std::uint64_t part = std::min(size, sge.length - offset);
        piece(host + offset, static_cast<std::size_t>(part));
        size -= part;
        offset = 0;
    }
    return size == 0;
}

[[nodiscard]] inline bool gather(const MemoryTable& memory, const ibv_pd* pd, std::span<const ibv_sge> sges,
                                 std::uint64_t offset, std::byte* to, std::uint32_t size) noexcept {
    return for_each_piece(memory, pd, sges, 0, offset, size, [&to](const std::byte* host, std::size_t part) {
        copy_from_memory(to, host, part);
        to += part;
    });
}

[[nodiscard]] inline bool scatter(const MemoryTable& memory, const ibv_pd* pd, std::span<const ibv_sge> sges,
                                  std::uint64_t offset, const std::byte* from, std::uint32_t size) noexcept {
    return for_each_piece(memory, pd, sges, IBV_ACCESS_LOCAL_WRITE, offset, size,
                          [&from](std::byte* host, std::size_t part) {
                              copy_to_memory(host, from, part);
                              from += part;
                          });
}

/// Whether the memory table permits `access` to all of the SGEs.
[[nodiscard]] inline bool allowed(const MemoryTable& memory, const ibv_pd* pd, std::span<const ibv_sge> sges,
                                  int access) noexcept {
    return std::all_of(sges.begin(), sges.end(), [&](const ibv_sge& sge) {
        return sge.length == 0 || memory.find(sge.lkey, pd, sge.addr, sge.length, access) != nullptr;
    });
}

}  // namespace pollcore::soft
