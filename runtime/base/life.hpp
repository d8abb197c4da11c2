// The lives of an index in the table of queue pairs. A new life begins each time that a queue pair gets the index, and
// at each reset of that queue pair.
//
// Thread safety: pure.
#pragma once

#include <cstdint>

namespace pollcore {

/// A queue pair's handle has room for the generation only. The generation is never 0, and repeats after 65535 lives.
/// The epoch distinguishes two lives with the same generation, because traces of the earlier life may remain.
struct Life {
    std::uint16_t generation = 0;
    std::uint16_t epoch = 0;
};

/// `number` is the number of the life. The lives of an index are numbered from 0.
[[nodiscard]] constexpr Life life_of(std::uint32_t number) noexcept {
    constexpr std::uint32_t kGenerations = 0xffff;
    return {static_cast<std::uint16_t>(number % kGenerations + 1), static_cast<std::uint16_t>(number / kGenerations)};
}

}  // namespace pollcore
