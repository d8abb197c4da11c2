#include "connect/handshake.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore {

std::vector<std::byte> encode_private_data(std::span<const std::byte> payload, std::size_t payload_max) {
    if (payload.size() > payload_max) {
        throw Error(EMSGSIZE,
                    fmt::format("private data of {} bytes does not fit: this message of rdma_cm carries "
                                "at most {}; send the rest over the connection",
                                payload.size(), payload_max));
    }
    std::vector<std::byte> frame(kPrivateDataHeader + payload.size());
    std::copy(kPrivateDataMagic.begin(), kPrivateDataMagic.end(), frame.begin());
    frame[2] = std::byte{kPrivateDataVersion};
    frame[3] = static_cast<std::byte>(payload.size());
    std::copy(payload.begin(), payload.end(), frame.begin() + kPrivateDataHeader);
    return frame;
}

std::string_view private_data_fault_text(PrivateDataFault fault) noexcept {
    switch (fault) {
        case PrivateDataFault::none: return "nothing is wrong with it";
        case PrivateDataFault::cut_off: return "its header is cut off";
        case PrivateDataFault::other_version: return "it is of a version that this pollcore does not know";
        case PrivateDataFault::too_long: return "it claims more bytes than arrived";
        case PrivateDataFault::dirty_padding: return "it is followed by bytes that are no padding";
    }
    return "it is damaged";
}

DecodedPrivateData decode_private_data(std::span<const std::byte> received) noexcept {
    const auto fault = [](PrivateDataFault what) { return DecodedPrivateData{what, true, {}}; };

    if (received.size() < kPrivateDataMagic.size() ||
        !std::equal(kPrivateDataMagic.begin(), kPrivateDataMagic.end(), received.begin())) {
        return {PrivateDataFault::none, false, received};
    }
    if (received.size() < kPrivateDataHeader) {
        return fault(PrivateDataFault::cut_off);
    }
    if (received[2] != std::byte{kPrivateDataVersion}) {
        return fault(PrivateDataFault::other_version);
    }
    const auto length = std::to_integer<std::size_t>(received[3]);
    const auto body = received.subspan(kPrivateDataHeader);
    if (length > body.size()) {
        return fault(PrivateDataFault::too_long);
    }
    const auto padding = body.subspan(length);
    if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
        return fault(PrivateDataFault::dirty_padding);
    }
    return {PrivateDataFault::none, true, body.first(length)};
}

}  // namespace pollcore
