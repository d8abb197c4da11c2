// Between the structures of verbs.h and those of libpollcore-client. Both follow the verbs, so that most members have
// equal names.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "plain_verbs.hpp"
#include "pollcore/attach.hpp"

namespace pollcore::served {

/// The number in an enumeration of a program's structure. It may be a value that the enumeration does not have.
template <class Enumeration>
[[nodiscard]] unsigned number_of(const Enumeration& from) noexcept {
    static_assert(sizeof(Enumeration) == sizeof(unsigned));
    unsigned number = 0;
    std::memcpy(&number, &from, sizeof number);
    return number;
}

/// The state and attributes that `mask` names. Throws Error: EINVAL for values that verbs do not have, EOPNOTSUPP for
/// an alternate path and what else cannot be set.
[[nodiscard]] QpAttributes to_attributes(const ibv_qp_attr& attr, int mask);
/// `qp_type` says which attributes there are.
void fill_attr(ibv_qp_attr& attr, const QpQuery& query, ibv_qp_type qp_type) noexcept;

[[nodiscard]] AddressAttributes to_address(const ibv_ah_attr& attr) noexcept;
[[nodiscard]] ibv_ah_attr to_ah_attr(const AddressAttributes& address) noexcept;

/// A ring of wide completions cannot have more slots.
inline constexpr std::uint32_t kCqesMax = kRingSlotsMax / 2;
/// Reduces what the device has to what can be served.
[[nodiscard]] DeviceAttributes as_served(const DeviceAttributes& attributes) noexcept;
[[nodiscard]] ibv_device_attr to_device_attr(const DeviceAttributes& attributes) noexcept;
[[nodiscard]] ibv_port_attr to_port_attr(const PortAttributes& attributes) noexcept;

/// `bit`, or no bit.
template <class Bit>
[[nodiscard]] constexpr unsigned bit_if(bool set, Bit bit) noexcept {
    return set ? static_cast<unsigned>(bit) : 0u;
}

/// IBV_ACCESS_* bits. Throws Error(EOPNOTSUPP) for on-demand paging and other bits that cannot be served.
[[nodiscard]] Access to_access(unsigned access);
[[nodiscard]] ibv_mtu to_mtu(std::uint16_t bytes) noexcept;

/// The status as verbs have it. The runtime's own statuses become the nearest one.
[[nodiscard]] ibv_wc_status to_wc_status(Status status) noexcept;
[[nodiscard]] ibv_wc_opcode to_wc_opcode(CompletionOpcode opcode) noexcept;
[[nodiscard]] unsigned to_wc_flags(const WideCompletion& completion) noexcept;

/// The result of a refused post, as providers have it.
[[nodiscard]] int errno_of(Refusal refusal) noexcept;

}  // namespace pollcore::served
