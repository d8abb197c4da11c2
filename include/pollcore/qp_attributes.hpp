// The attributes of a queue pair that a program drives by hand, with the names that `struct ibv_qp_attr` gives them
// (ibv_modify_qp(3)). QueuePair::modify sets them, and QueuePair::query returns them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace pollcore {

/// The state of a queue pair at its device; values of `enum ibv_qp_state`. QueuePair::modify cannot move a queue pair
/// to SQD, and moves one in SQE to ERR or RESET only.
enum class VerbsQpState : std::uint8_t { reset, init, rtr, rts, sqd, sqe, err };

/// The rights that peers have to this side's memory through the QP, as IBV_ACCESS_REMOTE_*.
struct RemoteAccess {
    bool read = false;
    bool write = false;
    bool atomic = false;

    [[nodiscard]] static constexpr RemoteAccess all() noexcept { return {true, true, true}; }
    friend bool operator==(const RemoteAccess&, const RemoteAccess&) = default;
};

/// The way to a peer's port: `struct ibv_ah_attr` with its `struct ibv_global_route`. There is a GRH (is_global) if
/// `dgid` is not all zero. RoCE needs one.
struct AddressAttributes {
    std::array<std::uint8_t, 16> dgid{};  ///< the peer's GID, in network byte order
    std::uint32_t flow_label = 0;         ///< 20 bits
    std::uint8_t sgid_index = 0;          ///< which of this side's GIDs: see Context::gids
    std::uint8_t hop_limit = 64;
    std::uint8_t traffic_class = 0;
    std::uint8_t sl = 0;
    std::uint8_t port_num = 1;       ///< must be the port of the configuration
    std::uint8_t src_path_bits = 0;  ///< InfiniBand
    std::uint16_t dlid = 0;          ///< InfiniBand

    friend bool operator==(const AddressAttributes&, const AddressAttributes&) = default;
};

/// Attributes for QueuePair::modify: those that have a value are set, which is `attr_mask` of ibv_modify_qp(3). Which
/// attributes a transition needs and takes follows from the type of the queue pair, and is in the table of that manual
/// page. There is no alternate path.
struct QpAttributes {
    std::optional<VerbsQpState> qp_state{};
    std::optional<VerbsQpState> cur_qp_state{};   ///< the state that the caller believes the queue pair to be in
    std::optional<RemoteAccess> remote_access{};  ///< `qp_access_flags`
    std::optional<std::uint16_t> pkey_index{};
    std::optional<std::uint8_t> port_num{};  ///< must be the port of the configuration
    /// UD. A key with its highest bit set needs what QueuePairOptions::qkey says.
    std::optional<std::uint32_t> qkey{};
    std::optional<AddressAttributes> ah_attr{};
    std::optional<std::uint16_t> path_mtu{};  ///< bytes: 256, 512, 1024, 2048 or 4096
    std::optional<std::uint8_t> timeout{};    ///< ack timeout, 4.096 us << timeout; 0 waits for ever
    std::optional<std::uint8_t> retry_cnt{};  ///< 0 to 7
    std::optional<std::uint8_t> rnr_retry{};  ///< 0 to 6; 7 means without limit
    std::optional<std::uint32_t> rq_psn{};    ///< 24 bits: the first PSN that the peer sends
    std::optional<std::uint32_t> sq_psn{};    ///< 24 bits: the first PSN that this side sends
    std::optional<std::uint8_t> max_rd_atomic{};
    std::optional<std::uint8_t> max_dest_rd_atomic{};
    std::optional<std::uint8_t> min_rnr_timer{};  ///< a code of the specification's table: 12 is 0.64 ms
    std::optional<std::uint32_t> dest_qp_num{};

    friend bool operator==(const QpAttributes&, const QpAttributes&) = default;
};

/// The sizes of a queue pair's queues and requests, as the device has made them (`struct ibv_qp_cap`). They are at
/// least what QueuePairOptions asks for. Devices round up, and the runtime posts requests of its own, so sessions
/// cannot use all of it.
struct QpCapabilities {
    std::uint32_t max_send_wr = 0;
    std::uint32_t max_recv_wr = 0;
    std::uint32_t max_send_sge = 0;
    std::uint32_t max_recv_sge = 0;
    std::uint32_t max_inline_data = 0;
};

/// The result of QueuePair::query.
struct QpQuery {
    /// All attributes have a value, but for cur_qp_state. An attribute that was never set, or that the type does not
    /// have, has the value that the device returns for it.
    QpAttributes attributes;
    QpCapabilities cap;
};

}  // namespace pollcore
