// The attributes that move a QP from state to state, with the masks that the specification demands for its type
// (ibv_modify_qp(3)). The functions are pure; the caller calls ibv_modify_qp().
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

#include "pollcore/queue_pair.hpp"

namespace pollcore {

struct Transition {
    ibv_qp_attr attr{};
    int mask = 0;
};

/// The IBV_ACCESS_* flags for what peers may do through a QP.
[[nodiscard]] int access_flags(const RemoteAccess& access) noexcept;

/// Convert bytes to the verbs' enumeration and back. For 0, and for any number that is no MTU, mtu_from_bytes() returns
/// `otherwise`.
[[nodiscard]] ibv_mtu mtu_from_bytes(std::uint32_t bytes, ibv_mtu otherwise) noexcept;
[[nodiscard]] std::uint16_t mtu_to_bytes(ibv_mtu mtu) noexcept;

/// For RC and UC, which need the same attributes.
[[nodiscard]] Transition to_init(std::uint8_t port, int access) noexcept;
[[nodiscard]] Transition to_datagram_init(std::uint8_t port, std::uint32_t qkey) noexcept;
/// The address of a peer. For RC and UC, to_rtr() contains it. For UD, an address handle is made from it.
[[nodiscard]] ibv_ah_attr to_address(const QpInfo& peer, const PathAttributes& path, std::uint8_t port,
                                     std::uint8_t gid_index) noexcept;
/// For RC and UC. `mtu` is used unless the path or the peer asks for a smaller MTU.
[[nodiscard]] Transition to_rtr(const QpInfo& peer, const PathAttributes& path, std::uint8_t port,
                                std::uint8_t gid_index, ibv_mtu mtu, QpType type = QpType::rc) noexcept;
/// `psn` is the first PSN that this side sends. `path` is only used for RC.
[[nodiscard]] Transition to_rts(std::uint32_t psn, const PathAttributes& path, QpType type = QpType::rc) noexcept;
[[nodiscard]] Transition to_state(ibv_qp_state state) noexcept;  ///< sets only the state: for ERR, RESET, and RTR of UD

/// For queue pairs that are driven by hand. to_verbs() throws Error(EINVAL) for a value that has no counterpart in the
/// verbs.
[[nodiscard]] Transition to_verbs(const QpAttributes& attributes);
[[nodiscard]] ibv_ah_attr to_verbs(const AddressAttributes& address);
[[nodiscard]] QpQuery from_verbs(const ibv_qp_attr& attr) noexcept;

}  // namespace pollcore
