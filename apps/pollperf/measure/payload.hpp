// The bytes of message number N: a pattern that differs from the patterns of messages N - 1 and N + 1 in every byte.
//
// Thread safety: pure functions on memory that the caller owns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace pollcore::perf {

[[nodiscard]] constexpr std::uint8_t pattern(std::uint64_t sequence, std::size_t position) noexcept {
    // The sequence is added unchanged, so that the last byte of a message always differs from that of the previous
    // message.
    return static_cast<std::uint8_t>(sequence + 31 * position + 17 * (position >> 8));
}

inline void fill(std::span<std::byte> bytes, std::uint64_t sequence) noexcept {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(pattern(sequence, i));
    }
}

/// Loads a byte that the device or another core may write at the same time.
[[nodiscard]] inline std::uint8_t load_byte(const std::byte* byte) noexcept {
    // atomic_ref is for non-const objects only (until C++26); nothing is stored through it.
    auto& object = *const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(byte));
    return std::atomic_ref<std::uint8_t>(object).load(std::memory_order_acquire);
}
inline void store_byte(std::byte* byte, std::uint8_t value) noexcept {
    std::atomic_ref<std::uint8_t>(*reinterpret_cast<std::uint8_t*>(byte)).store(value, std::memory_order_release);
}

/// The position of the first byte that differs from the pattern; nullopt if none differs.
[[nodiscard]] inline std::optional<std::size_t> first_difference(std::span<const std::byte> bytes,
                                                                 std::uint64_t sequence) noexcept {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (load_byte(&bytes[i]) != pattern(sequence, i)) {
            return i;
        }
    }
    return std::nullopt;
}

}  // namespace pollcore::perf
