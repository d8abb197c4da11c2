// Access to records by words of eight bytes. With words, a producer writes a slot of a ring in few stores (D5), and a
// reader can read memory that another process may change at any time.
//
// Thread safety: see SharedWords.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace pollcore {

/// A word of a record of any type.
using Word [[gnu::may_alias]] = std::uint64_t;
static_assert(std::endian::native == std::endian::little, "the last byte of a record is the highest of its last word");

template <class T>
[[nodiscard]] Word* words_of(T& record) noexcept {
    static_assert(sizeof(T) % sizeof(Word) == 0 && alignof(T) % alignof(Word) == 0);
    return reinterpret_cast<Word*>(&record);
}

/// A record that another thread or process may be writing. Each access reads the word from memory again (relaxed). So a
/// caller should read a word once, and use the copy that it has checked.
class SharedWords {
public:
    explicit SharedWords(const Word* first) noexcept : first_(first) {}
    [[nodiscard]] std::uint64_t operator[](std::size_t i) const noexcept {
        return __atomic_load_n(first_ + i, __ATOMIC_RELAXED);
    }

private:
    const Word* first_;
};

}  // namespace pollcore
