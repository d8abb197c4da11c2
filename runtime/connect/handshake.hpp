// The format of a user's private data in the messages of rdma_cm.
//
// Private data may arrive longer than it was sent, because rdma_cm pads it with zeros (H14). So a header of four bytes
// comes before the payload: two bytes of magic, a version, and the payload's length. In the versions for flow control,
// the address and rkey of the sender's control block follow the header, lowest byte first. A program without pollcore
// sends no header. Its bytes are returned as they came, with the padding.
//
// All functions are pure. Bytes from a peer may be hostile, so no length is used before it was compared with the number
// of bytes that arrived.
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

/// These bytes are no letters, so that no text begins with them by chance.
inline constexpr std::array<std::byte, 2> kPrivateDataMagic{std::byte{0xb7}, std::byte{0x9c}};
/// The version says which kind of flow control the sender uses.
[[nodiscard]] constexpr std::uint8_t private_data_version(FlowControl kind) noexcept {
    return static_cast<std::uint8_t>(1 + static_cast<unsigned>(kind));
}
inline constexpr std::uint8_t kPrivateDataVersionLast = private_data_version(*std::prev(std::end(kFlowControls)));
static_assert(kPrivateDataHeader == kPrivateDataMagic.size() + 2);
static_assert(kRequestPrivateDataMax <= 255 && kReplyPrivateDataMax <= 255, "a length is one byte");

/// Returns the header, address and rkey of the control block if `flow` has one, and the payload. `payload_max` is the
/// largest number of bytes that may follow the header in this message of rdma_cm (kRequestPrivateDataMax, ...). Throws
/// pollcore::Error (EMSGSIZE) if there are more.
[[nodiscard]] std::vector<std::byte> encode_private_data(std::span<const std::byte> payload, std::size_t payload_max,
                                                         const FlowBlock& flow = {});

/// Returns the bytes that go into a message of rdma_cm: with the header, or unchanged in the raw form. `payload_max` is
/// the limit of the framed form. Throws pollcore::Error: EMSGSIZE, and EINVAL for flow control in the raw form.
[[nodiscard]] std::vector<std::byte> private_data_to_send(PrivateDataForm form, std::span<const std::byte> payload,
                                                          std::size_t payload_max, const FlowBlock& flow = {});

/// The reason why bytes with the magic are not valid private data of pollcore.
enum class PrivateDataFault {
    none,
    cut_off,        ///< part of the header, or of the control block's address and rkey, is missing
    other_version,  ///< a version that this library does not know
    too_long,       ///< the length in the header is greater than the number of bytes that arrived
    dirty_padding,  ///< something other than zeros follows the payload
};
[[nodiscard]] std::string_view private_data_fault_text(PrivateDataFault fault) noexcept;

struct DecodedPrivateData {
    PrivateDataFault fault = PrivateDataFault::none;
    bool framed = false;                 ///< false: there is no header, and `payload` is all that arrived
    FlowBlock flow{};                    ///< the peer's control block and kind of flow control
    std::span<const std::byte> payload;  ///< a part of the decoded bytes; empty if there is a fault
};
[[nodiscard]] DecodedPrivateData decode_private_data(std::span<const std::byte> received) noexcept;
/// In the raw form nothing is decoded.
[[nodiscard]] inline DecodedPrivateData private_data_that_came(PrivateDataForm form,
                                                               std::span<const std::byte> received) noexcept {
    return form == PrivateDataForm::raw ? DecodedPrivateData{.payload = received} : decode_private_data(received);
}

}  // namespace pollcore
