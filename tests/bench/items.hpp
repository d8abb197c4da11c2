// What goes through the rings that are compared: every byte of an item says which item it is, and is looked at.
//
// Thread safety: pure.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pollcore::bench {

inline constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15;  // neighbouring words differ in every byte

/// `Bytes` of payload.
template <std::size_t Bytes>
struct Item {
    static constexpr std::size_t kWords = Bytes / sizeof(std::uint64_t);

    std::array<std::uint64_t, kWords> words;

    void fill(std::uint64_t number) noexcept {
        for (std::size_t i = 0; i < kWords; ++i) {
            words[i] = number + i * kStride;
        }
    }
    /// Zero when it is item `number`.
    [[nodiscard]] std::uint64_t differs(std::uint64_t number) const noexcept {
        std::uint64_t difference = 0;
        for (std::size_t i = 0; i < kWords; ++i) {
            difference |= words[i] ^ (number + i * kStride);
        }
        return difference;
    }
};

/// The same as a slot of pollcore's ring, whose last byte is the ring's.
template <std::size_t Bytes>
struct Slot {
    static constexpr std::size_t kWords = Bytes / sizeof(std::uint64_t);
    static constexpr std::uint64_t kPayloadOfLast = ~std::uint64_t{0} >> 8;
    static_assert(kWords == 1 || kWords == 4 || kWords == 8, "fill() knows these");

    alignas(Bytes) std::array<std::uint8_t, Bytes - 1> bytes;
    std::uint8_t ring_lap;

    /// As Item::fill, in as few stores as the compiler makes of that, without the last word, which is returned. From registers: a
    /// copy of what was just made would wait for it.
    std::uint64_t fill(std::uint64_t number) noexcept {
        std::uint8_t* to = bytes.data();
        if constexpr (kWords == 8) {
            store(to, kFirstFour + number);
            to += sizeof(Four);
            number += 4 * kStride;
        }
        if constexpr (kWords >= 4) {
            store(to, Two{0, kStride} + number);
            store(to + sizeof(Two), number + 2 * kStride);
            number += 3 * kStride;
        }
        return number;
    }
    /// As Item::differs.
    [[nodiscard]] std::uint64_t differs(std::uint64_t number) const noexcept {
        if constexpr (kWords == 1) {
            return (load<std::uint64_t>(0) ^ number) & kPayloadOfLast;
        } else {
            constexpr Four kOnes = {~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}, kPayloadOfLast};
            constexpr std::size_t kLast = Bytes - sizeof(Four);
            Four difference = (load<Four>(kLast) ^ (kFirstFour + (number + (kWords - 4) * kStride))) & kOnes;
            if constexpr (kWords == 8) {
                difference |= load<Four>(0) ^ (kFirstFour + number);
            }
            return (difference[0] | difference[1]) | (difference[2] | difference[3]);
        }
    }

private:
    using Two [[gnu::vector_size(16)]] = std::uint64_t;
    using Four [[gnu::vector_size(32)]] = std::uint64_t;
    static constexpr Four kFirstFour = {0, kStride, 2 * kStride, 3 * kStride};

    template <class Value>
    static void store(std::uint8_t* to, const Value& value) noexcept {
        std::memcpy(to, &value, sizeof(value));
    }
    template <class Value>
    [[nodiscard]] Value load(std::size_t at) const noexcept {
        Value value;
        std::memcpy(&value, reinterpret_cast<const std::uint8_t*>(this) + at, sizeof(value));
        return value;
    }
};
static_assert(sizeof(Slot<8>) == 8 && sizeof(Slot<32>) == 32 && sizeof(Slot<64>) == 64);

}  // namespace pollcore::bench
