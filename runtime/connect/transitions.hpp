// The attributes that move a QP from state to state, with the masks that the specification demands for its type
// (ibv_modify_qp(3)). Pure functions; the caller makes the call.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

#include "pollcore/queue_pair.hpp"

namespace pollcore {

struct Transition {
    ibv_qp_attr attr{};
    int mask = 0;
};

/// The IBV_ACCESS_* flags of what peers may do through a QP.
[[nodiscard]] int access_flags(const RemoteAccess& access) noexcept;

/// Convert bytes to the verbs' enumeration and back. 0 bytes, and any number that is no MTU, give `otherwise`.
[[nodiscard]] ibv_mtu mtu_from_bytes(std::uint32_t bytes, ibv_mtu otherwise) noexcept;
[[nodiscard]] std::uint16_t mtu_to_bytes(ibv_mtu mtu) noexcept;

/// RC and UC, which take the same attributes.
[[nodiscard]] Transition to_init(std::uint8_t port, int access) noexcept;
[[nodiscard]] Transition to_datagram_init(std::uint8_t port, std::uint32_t qkey) noexcept;
/// The address of a peer: for RC and UC a part of to_rtr, for UD that of an address handle.
[[nodiscard]] ibv_ah_attr to_address(const QpInfo& peer, const PathAttributes& path, std::uint8_t port,
                                     std::uint8_t gid_index) noexcept;
/// RC and UC. `mtu` is used where neither the path nor the peer asks for a smaller one.
[[nodiscard]] Transition to_rtr(const QpInfo& peer, const PathAttributes& path, std::uint8_t port,
                                std::uint8_t gid_index, ibv_mtu mtu, QpType type = QpType::rc) noexcept;
/// `psn` is the first PSN that this side sends. UC and UD take nothing of `path` here.
[[nodiscard]] Transition to_rts(std::uint32_t psn, const PathAttributes& path, QpType type = QpType::rc) noexcept;
[[nodiscard]] Transition to_state(ibv_qp_state state) noexcept;  ///< ERR, RESET: nothing but the state

}  // namespace pollcore
