#include "connect/transitions.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore {
namespace {

constexpr std::uint32_t k24Bits = 0xff'ffff;
constexpr std::uint32_t k20Bits = 0xf'ffff;

void require_within(std::string_view attribute, std::uint32_t value, std::uint32_t most) {
    if (value > most) {
        throw Error(EINVAL, fmt::format("{} is {:#x}; accepted is up to {:#x}", attribute, value, most));
    }
}

}  // namespace

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

ibv_ah_attr to_verbs(const AddressAttributes& address) {
    require_within("flow_label", address.flow_label, k20Bits);
    ibv_ah_attr ah{};
    ah.is_global = address.dgid != decltype(address.dgid){};
    std::memcpy(ah.grh.dgid.raw, address.dgid.data(), sizeof(ah.grh.dgid.raw));
    ah.grh.flow_label = address.flow_label;
    ah.grh.sgid_index = address.sgid_index;
    ah.grh.hop_limit = address.hop_limit;
    ah.grh.traffic_class = address.traffic_class;
    ah.dlid = address.dlid;
    ah.sl = address.sl;
    ah.src_path_bits = address.src_path_bits;
    ah.port_num = address.port_num;
    return ah;
}

Transition to_verbs(const QpAttributes& attributes) {
    require_within("rq_psn", attributes.rq_psn.value_or(0), k24Bits);
    require_within("sq_psn", attributes.sq_psn.value_or(0), k24Bits);
    require_within("dest_qp_num", attributes.dest_qp_num.value_or(0), k24Bits);
    Transition to;
    const auto take = [&](const auto& attribute, int bit, auto& field) {
        if (attribute.has_value()) {
            field = *attribute;
            to.mask |= bit;
        }
    };
    const auto take_state = [&](const std::optional<VerbsQpState>& state, int bit, ibv_qp_state& field) {
        if (!state.has_value()) {
            return;
        }
        if (*state > VerbsQpState::err) {
            throw Error(EINVAL, fmt::format("there is no state {} of a queue pair", static_cast<unsigned>(*state)));
        }
        field = static_cast<ibv_qp_state>(*state);
        to.mask |= bit;
    };
    take_state(attributes.qp_state, IBV_QP_STATE, to.attr.qp_state);
    take_state(attributes.cur_qp_state, IBV_QP_CUR_STATE, to.attr.cur_qp_state);
    if (attributes.remote_access.has_value()) {
        to.attr.qp_access_flags = static_cast<unsigned>(access_flags(*attributes.remote_access));
        to.mask |= IBV_QP_ACCESS_FLAGS;
    }
    take(attributes.pkey_index, IBV_QP_PKEY_INDEX, to.attr.pkey_index);
    take(attributes.port_num, IBV_QP_PORT, to.attr.port_num);
    take(attributes.qkey, IBV_QP_QKEY, to.attr.qkey);
    if (attributes.ah_attr.has_value()) {
        to.attr.ah_attr = to_verbs(*attributes.ah_attr);
        to.mask |= IBV_QP_AV;
    }
    if (attributes.path_mtu.has_value()) {
        constexpr auto kNone = static_cast<ibv_mtu>(0);
        to.attr.path_mtu = mtu_from_bytes(*attributes.path_mtu, kNone);
        if (to.attr.path_mtu == kNone) {
            throw Error(EINVAL, fmt::format("path_mtu is {} bytes; accepted are 256, 512, 1024, 2048 and 4096",
                                            *attributes.path_mtu));
        }
        to.mask |= IBV_QP_PATH_MTU;
    }
    take(attributes.timeout, IBV_QP_TIMEOUT, to.attr.timeout);
    take(attributes.retry_cnt, IBV_QP_RETRY_CNT, to.attr.retry_cnt);
    take(attributes.rnr_retry, IBV_QP_RNR_RETRY, to.attr.rnr_retry);
    take(attributes.rq_psn, IBV_QP_RQ_PSN, to.attr.rq_psn);
    take(attributes.sq_psn, IBV_QP_SQ_PSN, to.attr.sq_psn);
    take(attributes.max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC, to.attr.max_rd_atomic);
    take(attributes.max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC, to.attr.max_dest_rd_atomic);
    take(attributes.min_rnr_timer, IBV_QP_MIN_RNR_TIMER, to.attr.min_rnr_timer);
    take(attributes.dest_qp_num, IBV_QP_DEST_QPN, to.attr.dest_qp_num);
    return to;
}

QpQuery from_verbs(const ibv_qp_attr& attr) noexcept {
    QpQuery result;
    QpAttributes& to = result.attributes;
    to.qp_state = static_cast<VerbsQpState>(attr.qp_state);
    const unsigned access = attr.qp_access_flags;
    to.remote_access = RemoteAccess{.read = (access & IBV_ACCESS_REMOTE_READ) != 0,
                                    .write = (access & IBV_ACCESS_REMOTE_WRITE) != 0,
                                    .atomic = (access & IBV_ACCESS_REMOTE_ATOMIC) != 0};
    to.pkey_index = attr.pkey_index;
    to.port_num = attr.port_num;
    to.qkey = attr.qkey;
    const ibv_ah_attr& ah = attr.ah_attr;
    AddressAttributes address{.flow_label = ah.grh.flow_label,
                              .sgid_index = ah.grh.sgid_index,
                              .hop_limit = ah.grh.hop_limit,
                              .traffic_class = ah.grh.traffic_class,
                              .sl = ah.sl,
                              .port_num = ah.port_num,
                              .src_path_bits = ah.src_path_bits,
                              .dlid = ah.dlid};
    std::memcpy(address.dgid.data(), ah.grh.dgid.raw, address.dgid.size());
    to.ah_attr = address;
    to.path_mtu = attr.path_mtu == 0 ? std::uint16_t{0} : mtu_to_bytes(attr.path_mtu);
    to.timeout = attr.timeout;
    to.retry_cnt = attr.retry_cnt;
    to.rnr_retry = attr.rnr_retry;
    to.rq_psn = attr.rq_psn;
    to.sq_psn = attr.sq_psn;
    to.max_rd_atomic = attr.max_rd_atomic;
    to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    to.min_rnr_timer = attr.min_rnr_timer;
    to.dest_qp_num = attr.dest_qp_num;
    result.cap = {.max_send_wr = attr.cap.max_send_wr,
                  .max_recv_wr = attr.cap.max_recv_wr,
                  .max_send_sge = attr.cap.max_send_sge,
                  .max_recv_sge = attr.cap.max_recv_sge,
                  .max_inline_data = attr.cap.max_inline_data};
    return result;
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
