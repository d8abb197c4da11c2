// A record: a message in a write ring. Its parts, in the order of their addresses (numbers are bits, highest first):
//
//   payload   and zeros to the next multiple of 8
//   word 0    stamp 32 | length 32
//   word 1    with immediate 1 | lines skipped before it 31 | immediate 32
//   seal      the last word of a line
//
// The sender fills a ring from its last address to its first, for two reasons. First, the reader knows at which address
// the next record ends before it knows the record's length. Second, the two words and the seal follow the payload, so
// they arrive last if the device keeps the order of bytes. If a record does not fit between the last record and the
// ring's first address, it goes to the ring's last address, and word 1 contains the number of lines that it skipped.
//
// A position is the number of lines written since the ring was made, modulo 2^32. The stamp depends on the position. So
// the reader does not take a record of an earlier lap for a new one. The seal shows that the whole record has arrived.
// On a device that keeps the order of bytes, the seal arrives last. On any other device (H12), the seal contains a sum
// of the payload.
//
// Thread safety: nothing here is shared. worker/write_ring.hpp reads the memory that a peer writes, by atomic words.
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

/// The longest message, in bytes, in a ring of `lines` lines. A record takes at most a quarter of the ring, and skips
/// less than that. So the record and the skipped lines fit into the granted lines, even if a quarter of the ring is
/// free but not granted yet (flow/ring_flow.cc).
[[nodiscard]] constexpr std::uint32_t ring_message_max(std::uint32_t lines) noexcept {
    return lines / 4 * kCacheLine - kRecordTail;
}

/// A sum of a payload. It shows whether the payload contains a part of an old message. It does not protect against an
/// attacker, who may write any payload together with its sum.
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
        // There are four lanes, so a multiplication waits only for the multiplication four words before.
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
    std::size_t held_ = 0;  ///< the number of bytes in word_
};

struct RecordHeader {
    std::uint32_t length = 0;
    std::uint32_t skipped = 0;  ///< the number of lines skipped before this record
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

/// `sum` is the result of PayloadSum, or 0 if the receiver's device keeps the order of bytes.
[[nodiscard]] constexpr std::uint64_t seal_of(const RecordHeader::Words& words, std::uint64_t seed,
                                              std::uint64_t sum) noexcept {
    return (words[0] ^ seed) * 0xd6e8feb86659fd93 ^ std::rotl(words[1] * 0x9fb21c651e98df25, 29) ^ sum;
}

/// The peer's write ring, as described by the peer's terms. The records of one connection go there.
struct RingTarget {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    std::uint32_t lines = 0;
    std::uint64_t seed = 0;
    bool sums = true;  ///< the seal of a record contains a sum of its payload
};

/// The parts of a record beside its payload, in registered memory. They must not change until the device has sent them.
struct alignas(kCacheLine) RecordFrame {
    std::uint64_t zeros = 0;
    RecordHeader::Words words{};
    std::uint64_t seal = 0;
};
static_assert(sizeof(RecordFrame) == kCacheLine);

}  // namespace pollcore
