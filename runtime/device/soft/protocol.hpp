// The wire protocol of the software device: packets, packet sequence numbers (PSNs) and timers, as InfiniBand has them
// (IBTA volume 1, chapter 9). A header is a struct instead of packed bits. The payload follows the header in the link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pollcore::soft {

// ---- packet sequence numbers: 24 bits, wrapping ----

inline constexpr std::uint32_t kPsnMask = 0xffffff;
/// The most PSNs that may be outstanding on one QP. This is less than half of all PSNs, so that old and new ones can be
/// told apart.
inline constexpr std::int32_t kPsnWindow = (1 << 23) - 1;

[[nodiscard]] constexpr std::uint32_t psn_add(std::uint32_t psn, std::uint32_t count) noexcept {
    return (psn + count) & kPsnMask;
}
/// Positive when a comes after b, counted the shorter way round.
[[nodiscard]] constexpr std::int32_t psn_diff(std::uint32_t a, std::uint32_t b) noexcept {
    return static_cast<std::int32_t>((a - b) << 8) >> 8;
}

/// The longest message, in bytes. 1 GiB in packets of 256 bytes takes 2^22 PSNs, which fit the window.
inline constexpr std::uint32_t kMessageMax = 1u << 30;

/// Number of packets of a message. An empty message has one packet.
[[nodiscard]] constexpr std::uint32_t packets_of(std::uint32_t length, std::uint32_t mtu) noexcept {
    return length == 0 ? 1 : (length + mtu - 1) / mtu;
}

// ---- packets ----

enum class PacketKind : std::uint8_t {
    pad,  ///< fills the end of a link's memory; belongs to no QP
    // requests
    send,
    datagram,  ///< its payload begins with the GRH
    write,
    read_request,
    compare_swap,
    fetch_add,
    // responses
    ack,
    nak,
    rnr_nak,
    read_response,
    atomic_response,
};

enum PacketFlag : std::uint8_t {
    kFirst = 1 << 0,  ///< first packet of a message
    kLast = 1 << 1,
    kImmediate = 1 << 2,
    kSolicitedEvent = 1 << 3,
    kInvalidate = 1 << 4,  ///< the receiver invalidates `rkey`
};

/// The codes in the AETH, the header of a response (IBTA table "NAK codes").
enum class Nak : std::uint8_t { sequence = 0, invalid_request = 1, remote_access = 2, remote_operational = 3 };

/// The header in front of each payload. One cache line, so that records in a link stay aligned.
struct alignas(64) Packet {
    std::uint32_t record_size = 0;  ///< bytes of header and payload, rounded up to cache lines
    std::uint32_t payload_size = 0;
    PacketKind kind = PacketKind::pad;
    std::uint8_t flags = 0;          ///< PacketFlag bits
    std::uint8_t syndrome = 0;       ///< nak: Nak; rnr_nak: index of the timer
    std::uint8_t service_level = 0;  ///< datagram
    std::uint32_t dest_qpn = 0;
    std::uint32_t src_qpn = 0;
    std::uint32_t psn = 0;
    std::uint32_t imm = 0;   ///< in network byte order, as posted
    std::uint32_t rkey = 0;  ///< datagram: the Q_Key
    std::uint64_t va = 0;
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    std::uint32_t dma_length = 0;  ///< bytes of the whole message

    [[nodiscard]] std::byte* payload() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
    [[nodiscard]] const std::byte* payload() const noexcept { return reinterpret_cast<const std::byte*>(this + 1); }
};
static_assert(sizeof(Packet) == 64);

[[nodiscard]] constexpr std::uint32_t record_size_of(std::uint32_t payload) noexcept {
    return static_cast<std::uint32_t>(sizeof(Packet)) + ((payload + 63u) & ~63u);
}

// ---- timers ----

/// Converts the RNR NAK timer field to nanoseconds (IBTA table "Encoding for RNR NAK Timer Field").
[[nodiscard]] constexpr std::uint64_t rnr_timer_ns(std::uint8_t code) noexcept {
    constexpr std::array<std::uint32_t, 32> kTensOfMicroseconds = {
        65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
        256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return std::uint64_t{kTensOfMicroseconds[code & 31]} * 10'000;
}

/// Converts the local ACK timeout to nanoseconds: 4.096 us << code. With code 0 the timer never fires, and the result
/// is 0.
[[nodiscard]] constexpr std::uint64_t ack_timeout_ns(std::uint8_t code) noexcept {
    return code == 0 ? 0 : std::uint64_t{4096} << (code & 31);
}

}  // namespace pollcore::soft
