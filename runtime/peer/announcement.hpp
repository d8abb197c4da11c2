// The announcement of a message that is longer than the receiver's buffers: the receiver reads it from its sender's
// memory.
//
// The announcement is an RDMA write with immediate into the receiver's control block. It takes a receive like any
// message, so it keeps its place among the messages, and wakes a sleeping receiver. Only one message is announced at a
// time: everything behind it waits at the sender.
//
// Thread safety: pure.
#pragma once

#include <array>
#include <cstdint>

namespace pollcore {

/// Where the message lies, in its sender's memory. A peer writes this: nothing is used before it was checked.
struct Announcement {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    std::uint32_t length = 0;
    /// Which of this life's messages it is, from 1, modulo 2^32. With another number the receive is not the
    /// announcement's.
    std::uint32_t number = 0;
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
