// What the built-in services tell a peer when they accept its connection, in the private data of the answer.
//
// Shared by pollcored, which writes it, and by programs that use its services, pollperf among them. Plain
// little-endian bytes behind a magic, a version and their own length, so that a program in another language,
// or of another version, can say what it found instead of guessing.
//
// Everything here is a pure function on bytes. What comes from a peer is hostile: a decoder answers nothing
// unless all of it is there and makes sense.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace pollcore {

inline constexpr std::uint16_t kServiceWireVersion = 1;

/// Appends an unsigned number, least significant byte first.
template <class Unsigned>
void append_little_endian(std::vector<std::byte>& out, Unsigned value) {
    static_assert(std::is_unsigned_v<Unsigned>);
    for (std::size_t i = 0; i < sizeof(Unsigned); ++i) {
        out.push_back(static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff));
    }
}

/// Takes an unsigned number from the front of `in`, which must hold it.
template <class Unsigned>
[[nodiscard]] Unsigned take_little_endian(std::span<const std::byte>& in) {
    static_assert(std::is_unsigned_v<Unsigned>);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Unsigned); ++i) {
        value |= static_cast<std::uint64_t>(std::to_integer<std::uint8_t>(in[i])) << (8 * i);
    }
    in = in.subspan(sizeof(Unsigned));
    return static_cast<Unsigned>(value);
}

/// The eight bytes that every message begins with: magic (4), version (2), length of the whole (2).
inline constexpr std::size_t kServiceWireHeader = 8;

inline void append_service_header(std::vector<std::byte>& out, std::uint32_t magic, std::size_t whole_length) {
    append_little_endian(out, magic);
    append_little_endian(out, kServiceWireVersion);
    append_little_endian(out, static_cast<std::uint16_t>(whole_length));
}

/// True when `in` begins with a header of this magic and version whose length is exactly `whole_length` and
/// is there; `in` is then what follows the header. More bytes may follow: a carrier pads (H14).
[[nodiscard]] inline bool take_service_header(std::span<const std::byte>& in, std::uint32_t magic,
                                              std::size_t whole_length) {
    if (in.size() < whole_length || in.size() < kServiceWireHeader) {
        return false;
    }
    std::span<const std::byte> rest = in;
    if (take_little_endian<std::uint32_t>(rest) != magic ||
        take_little_endian<std::uint16_t>(rest) != kServiceWireVersion ||
        take_little_endian<std::uint16_t>(rest) != whole_length) {
        return false;
    }
    in = rest.first(whole_length - kServiceWireHeader);
    return true;
}

/// A `memory` service's answer: the region that the peer may read, write and do atomics on.
struct MemoryOffer {
    static constexpr std::uint32_t kMagic = 0x6d656d70;  // "pmem" on the wire
    static constexpr std::size_t kWireLength = kServiceWireHeader + 8 + 4 + 8;

    std::uint64_t addr = 0;  ///< what a work request puts into remote_addr
    std::uint32_t rkey = 0;
    std::uint64_t size = 0;  ///< bytes

    [[nodiscard]] std::vector<std::byte> encode() const {
        std::vector<std::byte> out;
        out.reserve(kWireLength);
        append_service_header(out, kMagic, kWireLength);
        append_little_endian(out, addr);
        append_little_endian(out, rkey);
        append_little_endian(out, size);
        return out;
    }
    [[nodiscard]] static std::optional<MemoryOffer> decode(std::span<const std::byte> in) {
        if (!take_service_header(in, kMagic, kWireLength)) {
            return std::nullopt;
        }
        MemoryOffer offer;
        offer.addr = take_little_endian<std::uint64_t>(in);
        offer.rkey = take_little_endian<std::uint32_t>(in);
        offer.size = take_little_endian<std::uint64_t>(in);
        return offer;
    }
};

/// An `echo` service's answer: what it sends back, and how much of it at once.
struct EchoOffer {
    static constexpr std::uint32_t kMagic = 0x68636570;  // "pech" on the wire
    static constexpr std::size_t kWireLength = kServiceWireHeader + 8 + 4;

    std::uint64_t message_size_max = 0;  ///< bytes; a longer message ends the connection
    std::uint32_t depth = 0;             ///< messages that may be on their way to it at once

    [[nodiscard]] std::vector<std::byte> encode() const {
        std::vector<std::byte> out;
        out.reserve(kWireLength);
        append_service_header(out, kMagic, kWireLength);
        append_little_endian(out, message_size_max);
        append_little_endian(out, depth);
        return out;
    }
    [[nodiscard]] static std::optional<EchoOffer> decode(std::span<const std::byte> in) {
        if (!take_service_header(in, kMagic, kWireLength)) {
            return std::nullopt;
        }
        EchoOffer offer;
        offer.message_size_max = take_little_endian<std::uint64_t>(in);
        offer.depth = take_little_endian<std::uint32_t>(in);
        return offer;
    }
};

}  // namespace pollcore
