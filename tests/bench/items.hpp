// The items that go through the compared rings: every word of an item depends on the item's number, and all bytes
// except the last are checked.
//
// All rings write and read items by the stores and loads in this file. No compiler can join, split or omit these
// accesses, so a ring's figures do not depend on how a compiler copies the payload.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pollcore::bench {

namespace items_detail {

using Two [[gnu::vector_size(16)]] = std::uint64_t;
using Four [[gnu::vector_size(32)]] = std::uint64_t;

inline constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15;  // neighbouring words differ in every byte
inline constexpr Four kFirstFour = {0, kStride, 2 * kStride, 3 * kStride};

// The compiler must assume that this function changes the value, so it can neither recompute the value nor load it a
// second time.
template <class Value>
[[gnu::always_inline]] inline void settle(Value& value) noexcept {
#if defined(__x86_64__)
    asm volatile("" : "+x"(value));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(value));
#endif
}
[[gnu::always_inline]] inline void settle(std::uint64_t& value) noexcept {
    asm volatile("" : "+r"(value));
}

template <class Value>
[[gnu::always_inline]] inline void store(std::byte* to, Value value) noexcept {
    settle(value);
    std::memcpy(to, &value, sizeof(value));
}
template <class Value>
[[nodiscard, gnu::always_inline]] inline Value load(const std::byte* from) noexcept {
    Value value;
    std::memcpy(&value, from, sizeof(value));
    settle(value);
    return value;
}

}  // namespace items_detail

/// A payload of `Bytes` bytes.
template <std::size_t Bytes>
struct Item {
    static_assert(Bytes == 32 || Bytes == 64);

    alignas(8) std::array<std::byte, Bytes> bytes;

    [[gnu::always_inline]] void fill(std::uint64_t number) noexcept {
        using namespace items_detail;
        for (std::size_t at = 0; at < Bytes; at += sizeof(Four)) {
            store(&bytes[at], kFirstFour + (number + at / 8 * kStride));
        }
    }
};

/// A slot of pollcore's ring. Its last byte belongs to the ring.
template <std::size_t Bytes>
struct Slot {
    static_assert(Bytes == 32 || Bytes == 64);

    alignas(Bytes) std::array<std::byte, Bytes - 1> bytes;
    std::uint8_t ring_lap;

    /// Writes all words except the last, and returns the last word. Needs two stores more than Item::fill.
    [[gnu::always_inline]] std::uint64_t fill(std::uint64_t number) noexcept {
        using namespace items_detail;
        std::byte* to = bytes.data();
        if constexpr (Bytes == 64) {
            store(to, kFirstFour + number);
            to += sizeof(Four);
            number += 4 * kStride;
        }
        store(to, Two{0, kStride} + number);
        store(to + sizeof(Two), number + 2 * kStride);
        return number + 3 * kStride;
    }
};
static_assert(sizeof(Slot<32>) == 32 && sizeof(Slot<64>) == 64);

/// Remembers whether any item differed from the expected bytes.
class Differences {
public:
    /// Checks an item or slot of `Bytes` bytes, except its last byte.
    template <std::size_t Bytes>
    [[gnu::always_inline]] void see(const void* item, std::uint64_t number) noexcept {
        using namespace items_detail;
        constexpr Four kAllButLast = {~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0} >> 8};
        const auto* from = static_cast<const std::byte*>(item);
        if constexpr (Bytes == 64) {
            found_ |= load<Four>(from) ^ (kFirstFour + number);
            from += sizeof(Four);
            number += 4 * kStride;
        }
        found_ |= (load<Four>(from) ^ (kFirstFour + number)) & kAllButLast;
    }
    [[nodiscard]] bool any() const noexcept { return (found_[0] | found_[1] | found_[2] | found_[3]) != 0; }

private:
    items_detail::Four found_{};
};

}  // namespace pollcore::bench
