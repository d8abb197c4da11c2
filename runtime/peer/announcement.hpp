// The announcement of a message that is longer than the receiver's buffers: the receiver reads it from its sender's
// memory.
//
// The announcement is an RDMA write with immediate into the receiver's control block. It takes a receive as any message
// does, so it comes in its place among them, and wakes who sleeps. One message at a time: all behind it waits at its
// sender.
//
// Thread safety: pure.
#pragma once

#include <array>
#include <cstdint>

namespace pollcore {

/// Where the message lies, in its sender's memory. A peer's: nothing is used before it was checked.
struct Announcement {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    std::uint32_t length = 0;
    std::uint32_t number =
        0;  ///< which of this life's messages it is, from 1, modulo 2^32: else the receive is another's
    bool with_imm = false;
    bool valid = true;  ///< false: nothing was announced since the last one was taken

    using Words = std::array<std::uint64_t, 3>;
    [[nodiscard]] constexpr Words pack() const noexcept {
        return {addr, std::uint64_t{rkey} << 32 | length,
                std::uint64_t{valid} << 33 | std::uint64_t{with_imm} << 32 | number};
    }
    [[nodiscard]] static constexpr Announcement unpack(const Words& words) noexcept {
        return {.addr = words[0],
                .rkey = static_cast<std::uint32_t>(words[1] >> 32),
                .length = static_cast<std::uint32_t>(words[1]),
                .number = static_cast<std::uint32_t>(words[2]),
                .with_imm = (words[2] >> 32 & 1) != 0,
                .valid = (words[2] >> 33 & 1) != 0};
    }
};

}  // namespace pollcore
