// A record: how a message stands in a write ring.
//
//   payload   and zeros to the next multiple of 8
//   word 0    stamp 32 | length 32
//   word 1    with immediate 1 | lines skipped before it 31 | immediate 32
//   seal      which ends with a line
//
// A ring is filled from its end to its beginning, for two reasons. The reader knows where the next record ends before
// it knows how long that is. And the words stand behind the payload, so they arrive last where the device keeps the
// order. A record that does not fit before the beginning stands at the end, and says how many lines it has skipped. A
// position is the number of lines written since the ring was made, modulo 2^32. The stamp stands for the position, so a
// record that an earlier lap left there is not taken for a new one. The seal stands for the whole record: it arrives
// last, or, where nothing promises that (H12), it contains a sum of the payload.
//
// Thread safety: pure functions. Memory that a peer writes is read by atomic words (worker/write_ring.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "pollcore/limits.hpp"

namespace pollcore {

/// The longest message in a ring of so many lines: a quarter of it, so that there is room for the message, and for the
/// lines that it skips, before the peer grants more.
[[nodiscard]] constexpr std::uint32_t ring_message_max(std::uint32_t lines) noexcept {
    return lines / 4 * kCacheLine - kRecordTail;
}

/// A sum of the payload, by which no part of an old message goes unnoticed. It does not protect from an attacker, who
/// may write any payload and sum.
class PayloadSum {
public:
    void add(const std::byte* bytes, std::size_t size) noexcept {
        while (size != 0 && (held_ != 0 || size < sizeof(std::uint64_t))) {
            const std::size_t n = std::min(size, sizeof(word_) - held_);
            std::memcpy(reinterpret_cast<std::byte*>(&word_) + held_, bytes, n);
            held_ += n;
            bytes += n;
            size -= n;
            if (held_ < sizeof(word_)) {
                return;
            }
            add(word_);
            word_ = held_ = 0;
        }
        for (; size >= sizeof(std::uint64_t); bytes += sizeof(std::uint64_t), size -= sizeof(std::uint64_t)) {
            std::uint64_t word;
            std::memcpy(&word, bytes, sizeof(word));
            add(word);
        }
        if (size != 0) {
            add(bytes, size);
        }
    }
    void add(std::uint64_t word) noexcept {
        // Four at a time: each multiplication waits for the one four words before.
        std::uint64_t& lane = lanes_[next_++ & 3];
        lane = std::rotl((lane ^ word) * 0x9fb21c651e98df25, 29);
    }
    [[nodiscard]] std::uint64_t finish() noexcept {
        if (held_ != 0) {
            add(word_);
            word_ = held_ = 0;
        }
        std::uint64_t sum = next_;
        for (const std::uint64_t lane : lanes_) {
            sum = std::rotl((sum ^ lane) * 0xd6e8feb86659fd93, 32);
        }
        return sum;
    }

private:
    std::array<std::uint64_t, 4> lanes_{1, 2, 3, 4};
    std::size_t next_ = 0;
    std::uint64_t word_ = 0;
    std::size_t held_ = 0;  ///< bytes of word_
};

struct RecordHeader {
    std::uint32_t length = 0;
    std::uint32_t skipped = 0;  ///< lines
    bool with_imm = false;
    std::uint32_t imm_data = 0;

    using Words = std::array<std::uint64_t, 2>;
    [[nodiscard]] static constexpr std::uint32_t stamp(std::uint32_t position, std::uint64_t seed) noexcept {
        return ~position ^ static_cast<std::uint32_t>(seed);
    }
    [[nodiscard]] constexpr Words pack(std::uint32_t position, std::uint64_t seed) const noexcept {
        return {std::uint64_t{stamp(position, seed)} << 32 | length,
                std::uint64_t{with_imm} << 63 | std::uint64_t{skipped} << 32 | imm_data};
    }
    [[nodiscard]] static constexpr RecordHeader unpack(const Words& words) noexcept {
        return {.length = static_cast<std::uint32_t>(words[0]),
                .skipped = static_cast<std::uint32_t>(words[1] >> 32) & 0x7fffffff,
                .with_imm = words[1] >> 63 != 0,
                .imm_data = static_cast<std::uint32_t>(words[1])};
    }
};

/// `sum` is PayloadSum's, or 0 where the receiver's device keeps the order.
[[nodiscard]] constexpr std::uint64_t seal_of(const RecordHeader::Words& words, std::uint64_t seed,
                                              std::uint64_t sum) noexcept {
    return (words[0] ^ seed) * 0xd6e8feb86659fd93 ^ std::rotl(words[1] * 0x9fb21c651e98df25, 29) ^ sum;
}

/// Where the records of one connection go: the peer's write ring, as its terms have it.
struct RingTarget {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    std::uint32_t lines = 0;
    std::uint64_t seed = 0;
    bool sums = true;  ///< the seal of a record contains a sum of its payload
};

/// What a record needs beside its payload, while it is on its way. Registered memory.
struct alignas(kCacheLine) RecordFrame {
    std::uint64_t zeros = 0;
    RecordHeader::Words words{};
    std::uint64_t seal = 0;
};
static_assert(sizeof(RecordFrame) == kCacheLine);

}  // namespace pollcore
