// How a user's private data travels with an rdma_cm connection.
//
// Private data may arrive longer than it was sent: the carrier pads with zeros (H14). So four bytes go before the
// payload: two bytes of magic, a version, and the payload's length. In the versions for flow control, the address and
// key of the sender's control block come between header and payload, lowest byte first. A program that knows nothing of
// pollcore sends no header; its bytes are handed over as they came, padding included.
//
// Everything here is a pure function on bytes. Bytes from a peer may be hostile: no length is believed before it was
// compared with the bytes that are there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "pollcore/limits.hpp"
#include "pollcore/queue_pair.hpp"

namespace pollcore {

/// Not letters, so that no text begins with it by chance.
inline constexpr std::array<std::byte, 2> kPrivateDataMagic{std::byte{0xb7}, std::byte{0x9c}};
/// The version says which flow control the sender has.
[[nodiscard]] constexpr std::uint8_t private_data_version(FlowControl kind) noexcept {
    return static_cast<std::uint8_t>(1 + static_cast<unsigned>(kind));
}
inline constexpr std::uint8_t kPrivateDataVersionLast = private_data_version(*std::prev(std::end(kFlowControls)));
static_assert(kPrivateDataHeader == kPrivateDataMagic.size() + 2);
static_assert(kRequestPrivateDataMax <= 255 && kReplyPrivateDataMax <= 255, "a length is one byte");

/// Header, control block if there is one, and payload. `payload_max`: bytes that the carrier takes besides the header
/// (kRequestPrivateDataMax and its kin). Throws pollcore::Error (EMSGSIZE) for more.
[[nodiscard]] std::vector<std::byte> encode_private_data(std::span<const std::byte> payload, std::size_t payload_max,
                                                         const FlowBlock& flow = {});

/// Why bytes that begin with our magic are not private data of ours.
enum class PrivateDataFault {
    none,
    cut_off,        ///< part of the header is missing
    other_version,  ///< a version that this library does not know
    too_long,       ///< the header's length is more than the bytes that came
    dirty_padding,  ///< something other than zeros follows the payload
};
[[nodiscard]] std::string_view private_data_fault_text(PrivateDataFault fault) noexcept;

struct DecodedPrivateData {
    PrivateDataFault fault = PrivateDataFault::none;
    bool framed = false;                 ///< false: no header; `payload` is everything that came
    FlowBlock flow{};                    ///< the peer's
    std::span<const std::byte> payload;  ///< within the decoded bytes; empty with a fault
};
[[nodiscard]] DecodedPrivateData decode_private_data(std::span<const std::byte> received) noexcept;

}  // namespace pollcore
