#include "connect/transitions.hpp"

#include <algorithm>
#include <cstring>

namespace pollcore {

int access_flags(const RemoteAccess& access) noexcept {
    return (access.read ? IBV_ACCESS_REMOTE_READ : 0) | (access.write ? IBV_ACCESS_REMOTE_WRITE : 0) |
           (access.atomic ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

ibv_mtu mtu_from_bytes(std::uint32_t bytes, ibv_mtu otherwise) noexcept {
    switch (bytes) {
        case 256: return IBV_MTU_256;
        case 512: return IBV_MTU_512;
        case 1024: return IBV_MTU_1024;
        case 2048: return IBV_MTU_2048;
        case 4096: return IBV_MTU_4096;
        default: return otherwise;
    }
}

std::uint16_t mtu_to_bytes(ibv_mtu mtu) noexcept {
    return static_cast<std::uint16_t>(128u << mtu);
}

Transition to_state(ibv_qp_state state) noexcept {
    Transition to;
    to.attr.qp_state = state;
    to.mask = IBV_QP_STATE;
    return to;
}

Transition to_init(std::uint8_t port, int access) noexcept {
    Transition to = to_state(IBV_QPS_INIT);
    to.attr.pkey_index = 0;
    to.attr.port_num = port;
    to.attr.qp_access_flags = static_cast<unsigned>(access);
    to.mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    return to;
}

Transition to_datagram_init(std::uint8_t port, std::uint32_t qkey) noexcept {
    Transition to = to_state(IBV_QPS_INIT);
    to.attr.pkey_index = 0;
    to.attr.port_num = port;
    to.attr.qkey = qkey;
    to.mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    return to;
}

ibv_ah_attr to_address(const QpInfo& peer, const PathAttributes& path, std::uint8_t port,
                       std::uint8_t gid_index) noexcept {
    ibv_ah_attr ah{};
    ah.dlid = peer.lid;
    ah.sl = path.service_level;
    ah.port_num = port;
    ah.is_global = 1;  // RoCE has nothing else
    std::memcpy(ah.grh.dgid.raw, peer.gid.data(), sizeof(ah.grh.dgid.raw));
    ah.grh.sgid_index = gid_index;
    ah.grh.flow_label = path.flow_label;
    ah.grh.hop_limit = path.hop_limit;
    ah.grh.traffic_class = path.traffic_class;
    return ah;
}

Transition to_rtr(const QpInfo& peer, const PathAttributes& path, std::uint8_t port, std::uint8_t gid_index,
                  ibv_mtu mtu, QpType type) noexcept {
    Transition to = to_state(IBV_QPS_RTR);
    to.attr.path_mtu = std::min({mtu, mtu_from_bytes(path.mtu, mtu), mtu_from_bytes(peer.mtu, mtu)});
    to.attr.dest_qp_num = peer.qp_num;
    to.attr.rq_psn = peer.psn;
    to.attr.ah_attr = to_address(peer, path, port, gid_index);
    to.mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == QpType::rc) {
        to.attr.max_dest_rd_atomic = path.max_dest_rd_atomic;
        to.attr.min_rnr_timer = path.min_rnr_timer;
        to.mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    return to;
}

Transition to_rts(std::uint32_t psn, const PathAttributes& path, QpType type) noexcept {
    Transition to = to_state(IBV_QPS_RTS);
    to.attr.sq_psn = psn;
    to.mask |= IBV_QP_SQ_PSN;
    if (type != QpType::rc) {
        return to;
    }
    to.attr.timeout = path.timeout;
    to.attr.retry_cnt = path.retry_count;
    to.attr.rnr_retry = path.rnr_retry;
    to.attr.max_rd_atomic = path.max_rd_atomic;
    to.mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return to;
}

}  // namespace pollcore
