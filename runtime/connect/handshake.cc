#include "connect/handshake.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore {

namespace {

template <class Word>
void put(std::span<std::byte> to, Word word) noexcept {
    for (std::size_t i = 0; i < sizeof(Word); ++i) {
        to[i] = static_cast<std::byte>(word >> 8 * i);
    }
}

template <class Word>
[[nodiscard]] Word get(std::span<const std::byte> from) noexcept {
    Word word = 0;
    for (std::size_t i = 0; i < sizeof(Word); ++i) {
        word |= static_cast<Word>(std::to_integer<Word>(from[i]) << 8 * i);
    }
    return word;
}

}  // namespace

std::vector<std::byte> encode_private_data(std::span<const std::byte> payload, std::size_t payload_max,
                                           const FlowBlock& flow) {
    const bool with_flow = flow.kind != FlowControl::off;
    const std::size_t flow_bytes = with_flow ? kPrivateDataFlow : 0;
    if (payload.size() + flow_bytes > payload_max) {
        throw Error(EMSGSIZE, fmt::format("private data of {} bytes does not fit: this message of rdma_cm carries "
                                          "at most {}{}; send the rest over the connection",
                                          payload.size(), payload_max - flow_bytes,
                                          with_flow ? " beside what flow control needs" : ""));
    }
    std::vector<std::byte> frame(kPrivateDataHeader + flow_bytes + payload.size());
    std::copy(kPrivateDataMagic.begin(), kPrivateDataMagic.end(), frame.begin());
    frame[2] = std::byte{private_data_version(flow.kind)};
    frame[3] = static_cast<std::byte>(payload.size());
    const std::span<std::byte> body = std::span(frame).subspan(kPrivateDataHeader);
    if (with_flow) {
        put(body, flow.addr);
        put(body.subspan(sizeof(flow.addr)), flow.rkey);
    }
    std::copy(payload.begin(), payload.end(), body.subspan(flow_bytes).begin());
    return frame;
}

std::vector<std::byte> private_data_to_send(PrivateDataForm form, std::span<const std::byte> payload,
                                            std::size_t payload_max, const FlowBlock& flow) {
    if (form == PrivateDataForm::framed) {
        return encode_private_data(payload, payload_max, flow);
    }
    if (flow.kind != FlowControl::off) {
        throw Error(EINVAL,
                    "flow control needs framed private data, which tells the peer where the control block is; choose "
                    "PrivateDataForm::framed at both ends, or FlowControl::off");
    }
    if (payload.size() > payload_max + kPrivateDataHeader) {
        throw Error(EMSGSIZE, fmt::format("private data of {} bytes does not fit: this message of rdma_cm carries at "
                                          "most {}; send the rest over the connection",
                                          payload.size(), payload_max + kPrivateDataHeader));
    }
    return {payload.begin(), payload.end()};
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
    const auto fault = [](PrivateDataFault what) {
        return DecodedPrivateData{.fault = what, .framed = true, .payload = {}};
    };

    if (received.size() < kPrivateDataMagic.size() ||
        !std::equal(kPrivateDataMagic.begin(), kPrivateDataMagic.end(), received.begin())) {
        return {.payload = received};
    }
    if (received.size() < kPrivateDataHeader) {
        return fault(PrivateDataFault::cut_off);
    }
    const auto version = std::to_integer<std::uint8_t>(received[2]);
    if (version < private_data_version(FlowControl::off) || version > kPrivateDataVersionLast) {
        return fault(PrivateDataFault::other_version);
    }
    const auto length = std::to_integer<std::size_t>(received[3]);
    std::span<const std::byte> body = received.subspan(kPrivateDataHeader);
    FlowBlock flow;
    if (version != private_data_version(FlowControl::off)) {
        if (body.size() < kPrivateDataFlow) {
            return fault(PrivateDataFault::cut_off);
        }
        flow = {.addr = get<std::uint64_t>(body),
                .rkey = get<std::uint32_t>(body.subspan(sizeof(std::uint64_t))),
                .kind = static_cast<FlowControl>(version - private_data_version(FlowControl::off))};
        body = body.subspan(kPrivateDataFlow);
    }
    if (length > body.size()) {
        return fault(PrivateDataFault::too_long);
    }
    const auto padding = body.subspan(length);
    if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
        return fault(PrivateDataFault::dirty_padding);
    }
    return {.framed = true, .flow = flow, .payload = body.first(length)};
}

}  // namespace pollcore
