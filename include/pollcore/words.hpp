// Records as words of eight bytes: how a slot of a ring is written in few stores, and read from memory that another
// process may change meanwhile.
//
// Thread safety: as said of each.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace pollcore {

/// A word of a record of whatever type.
using Word [[gnu::may_alias]] = std::uint64_t;
static_assert(std::endian::native == std::endian::little, "the last byte of a record is the highest of its last word");

template <class T>
[[nodiscard]] Word* words_of(T& record) noexcept {
    static_assert(sizeof(T) % sizeof(Word) == 0 && alignof(T) % alignof(Word) == 0);
    return reinterpret_cast<Word*>(&record);
}

/// A record whose words are read when they are asked for, each time anew (relaxed): another may write them meanwhile,
/// so a word that was checked is the word that is used, and not asked for again.
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
