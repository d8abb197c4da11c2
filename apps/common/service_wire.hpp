// The messages that built-in services send to a peer when they accept its connection. A message is the private data of
// the answer.
//
// pollcored writes these messages. Programs that use its services, such as pollperf, read them. A message is plain
// little-endian bytes. It begins with a magic, a version and its own length, so that a program in another language, or
// of another version, recognizes what it has received.
//
// Everything here is a pure function on bytes. A peer may be hostile: a decoder returns nullopt unless the message is
// complete and valid.
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

/// Removes an unsigned number from the front of `in` and returns it. `in` must be long enough.
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

/// The bytes at the beginning of every message: magic (4), version (2), length of the whole message (2).
inline constexpr std::size_t kServiceWireHeader = 8;

inline void append_service_header(std::vector<std::byte>& out, std::uint32_t magic, std::size_t whole_length) {
    append_little_endian(out, magic);
    append_little_endian(out, kServiceWireVersion);
    append_little_endian(out, static_cast<std::uint16_t>(whole_length));
}

/// Checks the header at the front of `in`. Returns true if it has this magic, this version and the length
/// `whole_length`, and if `in` has at least that many bytes. `in` then becomes the part of the message after the
/// header. Bytes after the message are allowed, because the transport pads (H14).
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

/// The answer of a `memory` service: the region in which the peer may read, write and do atomics.
struct MemoryOffer {
    static constexpr std::uint32_t kMagic = 0x6d656d70;  // "pmem" on the wire
    static constexpr std::size_t kWireLength = kServiceWireHeader + 8 + 4 + 8;

    std::uint64_t addr = 0;  ///< the region's address, for WorkRequest::remote_addr
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

/// The answer of an `echo` service: the length and the number of messages that it takes.
struct EchoOffer {
    static constexpr std::uint32_t kMagic = 0x68636570;  // "pech" on the wire
    static constexpr std::size_t kWireLength = kServiceWireHeader + 8 + 4;

    std::uint64_t message_size_max = 0;  ///< bytes; a longer message ends the connection
    std::uint32_t depth = 0;             ///< messages that may be on their way to the service at one time

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
