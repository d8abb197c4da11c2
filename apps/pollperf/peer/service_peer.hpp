// The peers that are no pollperf: the services of a pollcored, and other programs that echo. They say what they are in
// the private data with which they accept a connection.
//
// Thread safety: pure functions on bytes. A peer may be hostile: it is recognized only by a complete and valid message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/service_wire.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

/// The properties of the answering peer that a client needs to know.
struct PeerKind {
    std::string description;
    bool answers = false;  ///< the peer takes part in ping-pong; if false, it only offers memory
    RemoteBlock memory;
};
/// Reads the private data of an answer. Throws MeasurementError when the peer cannot serve `op` with messages of `size`
/// bytes.
[[nodiscard]] PeerKind recognize_peer(std::span<const std::byte> answer, Op op, std::uint32_t size);

}  // namespace pollcore::perf
