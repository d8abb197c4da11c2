// Copies between packets and registered memory, while application threads or other engines may read or write that
// memory.
//
// An application may poll the last bytes of an RDMA write. An atomic may change a word while the word is copied. So the
// last bytes of a piece are stored last, with release, and as one word if the alignment permits. A piece that is one
// aligned word is loaded as one word.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pollcore::soft {

namespace detail {
template <class Word>
inline void store_word(std::byte* to, const std::byte* from) noexcept {
    Word word;
    std::memcpy(&word, from, sizeof(Word));
    // Release: pairs with the acquire of a thread that polls this word; all bytes before it are then visible.
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
}
template <class Word>
inline void load_word(std::byte* to, const std::byte* from) noexcept {
    auto* source = reinterpret_cast<Word*>(const_cast<std::byte*>(from));
    // Acquire: the caller may next read what the word's writer wrote before the word.
    const Word word = std::atomic_ref<Word>(*source).load(std::memory_order_acquire);
    std::memcpy(to, &word, sizeof(Word));
}
}  // namespace detail

/// Copies into registered memory.
inline void copy_to_memory(std::byte* to, const std::byte* from, std::size_t size) noexcept {
    if (size == 0)
        return;
    const auto end = reinterpret_cast<std::uintptr_t>(to) + size;
    std::size_t word = 1;
    while (word < 8 && size >= 2 * word && end % (2 * word) == 0)
        word *= 2;
    const std::size_t before = size - word;
    if (before != 0)
        std::memcpy(to, from, before);
    switch (word) {
        case 8: detail::store_word<std::uint64_t>(to + before, from + before); break;
        case 4: detail::store_word<std::uint32_t>(to + before, from + before); break;
        case 2: detail::store_word<std::uint16_t>(to + before, from + before); break;
        default: detail::store_word<std::uint8_t>(to + before, from + before); break;
    }
}

/// The number of bytes at the end of a write that a thread may poll, if writes arrive in order. These bytes are the
/// last word, or the few words at the end of a record (peer/record.hpp).
inline constexpr std::size_t kLookedAt = 32;

/// Like copy_to_memory(), but stores the last `looked_at` bytes word by word, in order, because a thread may poll any
/// of them.
inline void write_to_memory(std::byte* to, const std::byte* from, std::size_t size, std::size_t looked_at) noexcept {
    constexpr std::size_t kWord = sizeof(std::uint64_t);
    if (size > looked_at) {
        const std::size_t before = size - looked_at;
        std::memcpy(to, from, before);
        to += before;
        from += before;
        size = looked_at;
    }
    for (; size > kWord && reinterpret_cast<std::uintptr_t>(to) % kWord != 0; --size) {
        detail::store_word<std::uint8_t>(to++, from++);
    }
    for (; size > kWord; to += kWord, from += kWord, size -= kWord) {
        std::uint64_t word;
        std::memcpy(&word, from, kWord);
        // Relaxed: the last word is stored with release.
        std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(to)).store(word, std::memory_order_relaxed);
    }
    copy_to_memory(to, from, size);
}

/// Copies out of registered memory.
inline void copy_from_memory(std::byte* to, const std::byte* from, std::size_t size) noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(from);
    if (size == 8 && begin % 8 == 0) {
        detail::load_word<std::uint64_t>(to, from);
    } else if (size == 4 && begin % 4 == 0) {
        detail::load_word<std::uint32_t>(to, from);
    } else if (size != 0) {
        std::memcpy(to, from, size);
    }
}

}  // namespace pollcore::soft
