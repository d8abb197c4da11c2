// The last entries of something that happens seldom.
//
// Thread safety: one thread writes; any thread may read. The log may lie in memory that another process writes: then an
// entry may be anything, but reading and writing stay within the log.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace pollcore {

/// An entry has `kWords` words.
template <std::size_t kWords>
class RecentLog {
public:
    static constexpr std::uint64_t kKept = 64;  ///< a power of two
    using Entry = std::array<std::uint64_t, kWords>;

    /// Called seldom, so the strongest memory order costs nothing.
    [[gnu::cold]] void note(const Entry& entry) noexcept {
        const std::uint64_t n = count_.load();
        for (std::size_t i = 0; i < kWords; ++i) {
            entries_[n % kKept][i].store(entry[i]);
        }
        count_.store(n + 1);
    }

    /// The number of entries since the beginning.
    [[nodiscard]] std::uint64_t count() const noexcept { return count_.load(); }
    /// The n-th entry, counted from 0. Returns nothing if there was none yet, or if newer ones have taken its place.
    [[nodiscard]] std::optional<Entry> at(std::uint64_t n) const noexcept {
        if (n >= count_.load()) {
            return std::nullopt;
        }
        Entry entry;
        for (std::size_t i = 0; i < kWords; ++i) {
            entry[i] = entries_[n % kKept][i].load();
        }
        // The entry number `count` may be half written. Its place is that of the entry `count - kKept`.
        return count_.load() - n < kKept ? std::optional(entry) : std::nullopt;
    }

    /// Calls `take` for each entry that the log still has, from number `next` on. Returns the number of the next one.
    template <class Take>
    std::uint64_t take_from(std::uint64_t next, Take&& take) const {
        const std::uint64_t count = count_.load();
        for (std::uint64_t n = count - next > kKept ? count - kKept : next; n != count; ++n) {
            if (const auto entry = at(n)) {
                take(*entry);
            }
        }
        return count;
    }

private:
    std::atomic<std::uint64_t> count_{0};
    std::array<std::array<std::atomic<std::uint64_t>, kWords>, kKept> entries_{};
};

}  // namespace pollcore
