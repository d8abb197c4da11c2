// The announcement of a message that is longer than the receiver's buffers. The receiver reads the announced message
// from the sender's memory.
//
// The sender writes the announcement into the receiver's control block by an RDMA write with immediate. This write
// takes a posted receive, like any message. So the announcement arrives in the order of the messages, and wakes a
// sleeping receiver. Only one message is announced at a time. Requests behind the announced message wait at the sender.
//
// Thread safety: pure.
#pragma once

#include <array>
#include <cstdint>

namespace pollcore {

/// The address of the announced message in the sender's memory. A peer writes the announcement, so the receiver
/// checks number and length before it uses them. Address and key are checked by the sender's device.
struct Announcement {
    std::uint64_t addr = 0;
    std::uint32_t rkey = 0;
    std::uint32_t length = 0;
    /// The number of the message in this life of the queue pair: from 1, modulo 2^32. A receive with another number
    /// does not belong to this announcement.
    std::uint32_t number = 0;
    bool with_imm = false;
    bool valid = true;  ///< false if no announcement has arrived since the last one was taken

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
