// Handles. Applications and rings use them to name objects of the runtime.
#pragma once

#include <compare>
#include <cstdint>

namespace pollcore {

/// An opaque name: an index into a table, and the generation of the object at that index. A handle does not contain the
/// worker or the device. The handle of a closed object is recognised as stale and refused.
template <class Tag>
struct Handle {
    std::uint16_t index = 0;
    std::uint16_t generation = 0;  ///< 0: the handle names no object

    [[nodiscard]] constexpr bool valid() const noexcept { return generation != 0; }
    friend constexpr auto operator<=>(const Handle&, const Handle&) noexcept = default;
};

/// A handle without default values, for use as a member of a union.
template <class Tag>
struct PlainHandle {
    PlainHandle() = default;
    constexpr explicit(false) PlainHandle(Handle<Tag> handle) noexcept
        : index(handle.index), generation(handle.generation) {}
    [[nodiscard]] constexpr explicit(false) operator Handle<Tag>() const noexcept { return {index, generation}; }

    std::uint16_t index;
    std::uint16_t generation;
};

using QpHandle = Handle<struct QpTag>;
/// A shared receive queue.
using SrqHandle = Handle<struct SrqTag>;
/// A receive pool.
using PoolHandle = Handle<struct PoolTag>;
/// An address handle, for UD destinations.
using AhHandle = Handle<struct AhTag>;
/// A memory window, and a memory region that windows can be bound to.
using MwHandle = Handle<struct MwTag>;
using MrHandle = Handle<struct MrTag>;

static_assert(sizeof(QpHandle) == 4);

}  // namespace pollcore
