// QpAttributes as plain data without padding, for the socket between an attached process and its daemon.
//
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <type_traits>

#include "pollcore/qp_attributes.hpp"

namespace pollcore {

struct PackedAttributes {
    std::uint32_t mask = 0;  ///< bits of enum ibv_qp_attr_mask
    std::uint32_t qkey = 0;
    std::uint32_t rq_psn = 0;
    std::uint32_t sq_psn = 0;
    std::uint32_t dest_qp_num = 0;
    std::uint16_t pkey_index = 0;
    std::uint16_t path_mtu = 0;
    std::uint8_t qp_state = 0;
    std::uint8_t cur_qp_state = 0;
    std::uint8_t remote_access = 0;  ///< 1: read, 2: write, 4: atomic
    std::uint8_t port_num = 0;
    std::uint8_t timeout = 0;
    std::uint8_t retry_cnt = 0;
    std::uint8_t rnr_retry = 0;
    std::uint8_t max_rd_atomic = 0;
    std::uint8_t max_dest_rd_atomic = 0;
    std::uint8_t min_rnr_timer = 0;
    std::uint16_t reserved = 0;
    AddressAttributes ah_attr{};
};
static_assert(std::has_unique_object_representations_v<PackedAttributes>);

namespace packed_detail {

inline void put(std::uint8_t& to, VerbsQpState from) noexcept {
    to = static_cast<std::uint8_t>(from);
}
inline void put(std::uint8_t& to, RemoteAccess from) noexcept {
    to = static_cast<std::uint8_t>((from.read ? 1 : 0) | (from.write ? 2 : 0) | (from.atomic ? 4 : 0));
}
inline void put(VerbsQpState& to, std::uint8_t from) noexcept {
    to = static_cast<VerbsQpState>(from);
}
inline void put(RemoteAccess& to, std::uint8_t from) noexcept {
    to = {.read = (from & 1) != 0, .write = (from & 2) != 0, .atomic = (from & 4) != 0};
}
template <class T>
void put(T& to, const T& from) noexcept {
    to = from;
}

/// Calls `f` with each attribute's bit of enum ibv_qp_attr_mask, the attribute, and its packed form.
template <class Attributes, class Packed, class F>
void for_each_attribute(Attributes& attributes, Packed& packed, F&& f) {
    f(1u << 0, attributes.qp_state, packed.qp_state);
    f(1u << 1, attributes.cur_qp_state, packed.cur_qp_state);
    f(1u << 3, attributes.remote_access, packed.remote_access);
    f(1u << 4, attributes.pkey_index, packed.pkey_index);
    f(1u << 5, attributes.port_num, packed.port_num);
    f(1u << 6, attributes.qkey, packed.qkey);
    f(1u << 7, attributes.ah_attr, packed.ah_attr);
    f(1u << 8, attributes.path_mtu, packed.path_mtu);
    f(1u << 9, attributes.timeout, packed.timeout);
    f(1u << 10, attributes.retry_cnt, packed.retry_cnt);
    f(1u << 11, attributes.rnr_retry, packed.rnr_retry);
    f(1u << 12, attributes.rq_psn, packed.rq_psn);
    f(1u << 13, attributes.max_rd_atomic, packed.max_rd_atomic);
    f(1u << 15, attributes.min_rnr_timer, packed.min_rnr_timer);
    f(1u << 16, attributes.sq_psn, packed.sq_psn);
    f(1u << 17, attributes.max_dest_rd_atomic, packed.max_dest_rd_atomic);
    f(1u << 20, attributes.dest_qp_num, packed.dest_qp_num);
}

}  // namespace packed_detail

[[nodiscard]] inline PackedAttributes pack(const QpAttributes& attributes) noexcept {
    PackedAttributes packed;
    packed_detail::for_each_attribute(attributes, packed, [&](std::uint32_t bit, const auto& attribute, auto& to) {
        if (attribute.has_value()) {
            packed.mask |= bit;
            packed_detail::put(to, *attribute);
        }
    });
    return packed;
}

/// Bits of `packed.mask` that no attribute has are ignored.
[[nodiscard]] inline QpAttributes unpack(const PackedAttributes& packed) noexcept {
    QpAttributes attributes;
    packed_detail::for_each_attribute(attributes, packed, [&](std::uint32_t bit, auto& attribute, const auto& from) {
        if ((packed.mask & bit) != 0) {
            packed_detail::put(attribute.emplace(), from);
        }
    });
    return attributes;
}

}  // namespace pollcore
