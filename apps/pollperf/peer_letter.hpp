// The messages that client and server exchange in the private data of their connection.
//
// Thread safety: pure functions on bytes. A peer may be hostile: decode() returns nullopt for an incomplete or invalid
// message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/service_wire.hpp"
#include "pollcore/limits.hpp"
#include "workload.hpp"

namespace pollcore::perf {

/// The client's request: the operations that the client is going to do, and the address of its memory.
struct LatRequest {
    static constexpr std::uint32_t kMagic = 0x74616c70;  // "plat" on the wire
    static constexpr std::size_t kWireLength = kServiceWireHeader + 4 + 4 + 4 + 4 + 8 + 4;
    static_assert(kWireLength <= kRequestPrivateDataMax);

    Op op = Op::send;
    PathKind path = PathKind::direct;
    bool verify = false;
    std::uint32_t size = 0;
    std::uint32_t iterations = 0;
    std::uint32_t warmup = 0;
    RemoteBlock memory;

    [[nodiscard]] std::vector<std::byte> encode() const;
    [[nodiscard]] static std::optional<LatRequest> decode(std::span<const std::byte> in);
};

/// The answer of a pollperf server: its path, and the address of its memory.
struct LatAnswer {
    static constexpr std::uint32_t kMagic = 0x736e6170;  // "pans" on the wire
    static constexpr std::size_t kWireLength = kServiceWireHeader + 4 + 8 + 4;

    PathKind path = PathKind::direct;
    RemoteBlock memory;

    [[nodiscard]] std::vector<std::byte> encode() const;
    [[nodiscard]] static std::optional<LatAnswer> decode(std::span<const std::byte> in);
};

/// Why a server with the options `server` cannot serve the request `client`; empty if it can.
[[nodiscard]] std::string mismatch(const LatRequest& server, const LatRequest& client);

/// The sentence as the private data of a rejection, cut to the length that fits. It must have only printable ASCII.
[[nodiscard]] std::vector<std::byte> rejection(std::string_view sentence);

/// The properties of the answering peer that a client needs to know.
struct PeerKind {
    std::string description;
    bool answers = false;          ///< the peer takes part in ping-pong; if false, it only offers memory
    bool ends_connection = false;  ///< the peer disconnects when it knows that its last answer has arrived
    RemoteBlock memory;
};
/// Reads the private data of an answer. Throws MeasurementError when the peer cannot serve `workload`.
[[nodiscard]] PeerKind recognize_peer(std::span<const std::byte> answer, const Workload& workload);

}  // namespace pollcore::perf
