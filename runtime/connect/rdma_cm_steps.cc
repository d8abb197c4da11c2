// The steps of a connection until its QP is in RTS. Each step begins here. If a step waits for an event,
// rdma_cm_events.cc handles the event.
#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "connect/rdma_cm_connector.hpp"

namespace pollcore {
namespace {

/// Time limit for resolving the address and the path. A local network answers in milliseconds.
constexpr int kResolveTimeoutMs = 2000;

/// Time limit for find_neighbour(). The kernel itself would wait just as long.
constexpr int kNeighbourTimeoutMs = 1000;

/// Bits of the kernel's attribute mask for RTR that only RoCE accepts. InfiniBand refuses them.
constexpr int kRoceOnlyMask = 0xe00000;

}  // namespace

int RdmaCmConnector::resolve_address(Connection& connection, CmAddress* source) {
    connection.id = create_id(connection.number);
    rdma_cm_id* id = connection.id.get();
    // Both options are part of the path, so they must be set before the path is resolved.
    std::uint8_t tos = connection.path.traffic_class;
    std::uint8_t timeout = connection.path.timeout;
    if (tos != 0 && rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) != 0) {
        return errno;
    }
    if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout) != 0) {
        return errno;
    }
    sockaddr* from = source == nullptr ? nullptr : source->get();
    return rdma_resolve_addr(id, from, connection.destination.get(), kResolveTimeoutMs) == 0 ? 0 : errno;
}

// The routing table does not know which device the caller chose, so it may lead to another RDMA device, or to none.
// Then this function tries the addresses of the chosen device as the source.
void RdmaCmConnector::address_failed(Connection& connection, Error failure) {
    if (!connection.first_failure) {
        connection.first_failure = std::move(failure);
        const CmAddress& destination = connection.destination;
        for (const GidEntry& gid : destination.is_link_local() ? std::vector<GidEntry>{} : device_.gids()) {
            const CmAddress own = CmAddress::from_gid(gid.gid.raw);
            const auto is_known = [&](const CmAddress& a) { return a.text() == own.text(); };
            if (own.family() == destination.family() && !own.is_link_local() &&
                std::none_of(connection.sources_left.begin(), connection.sources_left.end(), is_known)) {
                connection.sources_left.push_back(own);
            }
        }
    }
    while (!connection.sources_left.empty()) {
        CmAddress source = connection.sources_left.back();
        connection.sources_left.pop_back();
        if (resolve_address(connection, &source) == 0) {
            return;
        }
    }
    throw *connection.first_failure;
}

void RdmaCmConnector::address_resolved(Connection& connection) {
    if (const std::string other = foreign_device(*connection.id); !other.empty()) {
        address_failed(connection,
                       Error(ENODEV, fmt::format("cannot connect to {} with {}: the way there leads over {}. "
                                                 "Name that device in the configuration, or change the "
                                                 "routes (`ip route get`)",
                                                 connection.peer, own_device(), other)));
        return;
    }
    if (rdma_resolve_route(connection.id.get(), kResolveTimeoutMs) != 0) {
        throw Error(errno, fmt::format("cannot find a path to {} from {}", connection.peer, own_device()));
    }
    connection.state = State::resolving_route;
}

rdma_conn_param RdmaCmConnector::conn_param(const Connection& connection) const {
    rdma_conn_param param{};
    param.private_data = connection.frame.data();
    param.private_data_len = static_cast<std::uint8_t>(connection.frame.size());
    param.responder_resources = connection.dest_rd_atomic;
    param.initiator_depth = connection.rd_atomic;
    param.retry_count = connection.path.retry_count;
    param.rnr_retry_count = connection.path.rnr_retry;
    param.srq = connection.qp.srq ? 1 : 0;
    param.qp_num = connection.qp.qp_num;
    return param;
}

void RdmaCmConnector::send_request(Connection& connection) {
    rdma_conn_param param = conn_param(connection);
    if (rdma_connect(connection.id.get(), &param) != 0) {
        throw Error(errno, fmt::format("cannot ask {} for a connection from {}", connection.peer, own_device()));
    }
    connection.state = State::connecting;
}

void RdmaCmConnector::agree_as_answerer(Connection& connection) {
    // Before this function, rd_atomic and dest_rd_atomic hold the values that the peer asked for.
    const std::uint32_t rd_atomic_max = device_.limits().rd_atomic_max;
    const PathAttributes& path = connection.path;
    connection.rd_atomic =
        static_cast<std::uint8_t>(std::min<std::uint32_t>({connection.rd_atomic, path.max_rd_atomic, rd_atomic_max}));
    connection.dest_rd_atomic = static_cast<std::uint8_t>(
        std::min<std::uint32_t>({connection.dest_rd_atomic, path.max_dest_rd_atomic, rd_atomic_max}));
}

// To move a RoCE QP to RTR, the kernel needs the peer's MAC address. During the call it waits up to a second for this
// address (rdma_addr_find_l2_eth_by_grh() in drivers/infiniband/core/addr.c), and the QP's worker would have to wait,
// too. A peer can cause this wait: it asks for a connection, and then does not answer requests for its MAC address. So
// this function makes the kernel look up the address before the move. The kernel raises an event when it knows the
// address.
bool RdmaCmConnector::find_neighbour(Connection& connection) {
    if (device_.query_port().link_layer == IBV_LINK_LAYER_INFINIBAND) {
        return false;
    }
    const ibv_global_route to = attributes_for(connection, IBV_QPS_RTR).first.ah_attr.grh;
    const std::vector<GidEntry> gids = device_.gids();
    const auto own =
        std::find_if(gids.begin(), gids.end(), [&](const GidEntry& gid) { return gid.index == to.sgid_index; });
    if (own == gids.end()) {
        throw Error(EADDRNOTAVAIL, fmt::format("cannot connect with {}: the address by which it reached {} is gone",
                                               connection.peer, own_device()));
    }
    CmAddress source = CmAddress::from_gid(own->gid.raw, own->ifindex);
    CmAddress destination = CmAddress::from_gid(to.dgid.raw, own->ifindex);
    if (own->type != IBV_GID_TYPE_ROCE_V2 && destination.is_link_local()) {
        return false;  // such a GID contains the MAC address
    }
    connection.neighbour = create_id(connection.number);
    if (rdma_resolve_addr(connection.neighbour.get(), source.get(), destination.get(), kNeighbourTimeoutMs) != 0) {
        throw Error(errno, fmt::format("cannot reach {} from {}", connection.peer, own_device()));
    }
    connection.state = State::finding_neighbour;
    return true;
}

void RdmaCmConnector::move_and_tell(Connection& connection) {
    move_to_rtr_and_rts(connection);
    if (!connection.answering) {
        if (rdma_establish(connection.id.get()) != 0) {
            throw Error(errno, fmt::format("cannot establish the connection with {}", connection.peer));
        }
        connection.state = State::established;
        return;
    }
    rdma_conn_param param = conn_param(connection);
    if (rdma_accept(connection.id.get(), &param) != 0) {
        throw Error(errno, fmt::format("cannot accept the connection of {}, which may have given up", connection.peer));
    }
    connection.state = State::accepting;
}

std::pair<ibv_qp_attr, int> RdmaCmConnector::attributes_for(const Connection& connection, ibv_qp_state state) const {
    std::pair<ibv_qp_attr, int> answer{};
    answer.first.qp_state = state;
    if (rdma_init_qp_attr(connection.id.get(), &answer.first, &answer.second) != 0) {
        throw Error(errno,
                    fmt::format("cannot learn from rdma_cm how to connect a queue pair with {}", connection.peer));
    }
    return answer;
}

void RdmaCmConnector::move_to_rtr_and_rts(Connection& connection) {
    const PathAttributes& path = connection.path;
    // The QP is already in INIT, with its owner's access flags. Only the connection's partition (P_Key) may differ from
    // the QP's.
    if (auto [attr, mask] = attributes_for(connection, IBV_QPS_INIT); attr.pkey_index != 0) {
        connection.qp.modify(attr, mask & (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
    }

    auto [rtr, rtr_mask] = attributes_for(connection, IBV_QPS_RTR);
    if (device_.query_port().link_layer == IBV_LINK_LAYER_INFINIBAND) {
        rtr_mask &= ~kRoceOnlyMask;
    }
    const int path_mtu = 128 << rtr.path_mtu;
    if (path.mtu != 0 && path.mtu != path_mtu) {
        throw Error(EINVAL,
                    fmt::format("cannot connect with {} by a path MTU of {} bytes: the caller's is {}, and both "
                                "ends must have the same",
                                connection.peer, path.mtu, path_mtu));
    }
    rtr.max_dest_rd_atomic = connection.dest_rd_atomic;
    rtr.min_rnr_timer = path.min_rnr_timer;
    if (connection.answering && path.traffic_class != 0) {
        rtr.ah_attr.grh.traffic_class = path.traffic_class;
    }
    connection.qp.modify(rtr, rtr_mask);

    auto [rts, rts_mask] = attributes_for(connection, IBV_QPS_RTS);
    rts.max_rd_atomic = connection.rd_atomic;
    rts.timeout = path.timeout;
    rts.retry_cnt = path.retry_count;
    rts.rnr_retry = path.rnr_retry;
    connection.qp.modify(rts, rts_mask);
}

}  // namespace pollcore
