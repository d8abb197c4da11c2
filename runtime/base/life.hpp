// The lives of a queue pair's place: each reset begins a new life, and so does each queue pair that gets the place.
//
// Thread safety: pure.
#pragma once

#include <cstdint>

namespace pollcore {

/// A handle has room for the generation only, which is never 0 and comes again after 65535 lives. The epoch tells a
/// life from an earlier one with the same generation, which may have left something behind.
struct Life {
    std::uint16_t generation = 0;
    std::uint16_t epoch = 0;
};

/// A place counts its lives from 0.
[[nodiscard]] constexpr Life life_of(std::uint32_t number) noexcept {
    constexpr std::uint32_t kGenerations = 0xffff;
    return {static_cast<std::uint16_t>(number % kGenerations + 1), static_cast<std::uint16_t>(number / kGenerations)};
}

}  // namespace pollcore
