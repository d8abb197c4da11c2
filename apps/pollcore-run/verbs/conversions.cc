#include "conversions.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace pollcore::served {
namespace {

constexpr int kSettable = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                          IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                          IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN;

VerbsQpState to_state(unsigned state) {
    if (state > IBV_QPS_ERR) {
        throw Error(EINVAL, fmt::format("there is no state {} of a queue pair", state));
    }
    return static_cast<VerbsQpState>(state);
}

std::uint16_t mtu_bytes(unsigned mtu) {
    if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) {
        throw Error(EINVAL, fmt::format("there is no path MTU {}", mtu));
    }
    return static_cast<std::uint16_t>(128u << mtu);
}

unsigned access_flags(const RemoteAccess& access) noexcept {
    return bit_if(access.read, IBV_ACCESS_REMOTE_READ) | bit_if(access.write, IBV_ACCESS_REMOTE_WRITE) |
           bit_if(access.atomic, IBV_ACCESS_REMOTE_ATOMIC);
}

}  // namespace

ibv_mtu to_mtu(std::uint16_t bytes) noexcept {
    switch (bytes) {
        case 256: return IBV_MTU_256;
        case 512: return IBV_MTU_512;
        case 1024: return IBV_MTU_1024;
        case 2048: return IBV_MTU_2048;
        default: return IBV_MTU_4096;
    }
}

AddressAttributes to_address(const ibv_ah_attr& attr) noexcept {
    AddressAttributes address;
    if (attr.is_global != 0) {  // else a program need not set `grh`
        std::memcpy(address.dgid.data(), attr.grh.dgid.raw, address.dgid.size());
        address.flow_label = attr.grh.flow_label & 0xfffffu;  // UCX sets all 32 bits, and providers take 20
        address.sgid_index = attr.grh.sgid_index;
        address.hop_limit = attr.grh.hop_limit;
        address.traffic_class = attr.grh.traffic_class;
    }
    address.sl = attr.sl;
    address.port_num = attr.port_num;
    address.src_path_bits = attr.src_path_bits;
    address.dlid = attr.dlid;
    return address;
}

ibv_ah_attr to_ah_attr(const AddressAttributes& address) noexcept {
    ibv_ah_attr attr{};
    std::memcpy(attr.grh.dgid.raw, address.dgid.data(), address.dgid.size());
    attr.grh.flow_label = address.flow_label;
    attr.grh.sgid_index = address.sgid_index;
    attr.grh.hop_limit = address.hop_limit;
    attr.grh.traffic_class = address.traffic_class;
    attr.is_global = address.dgid != decltype(address.dgid){};
    attr.sl = address.sl;
    attr.port_num = address.port_num;
    attr.src_path_bits = address.src_path_bits;
    attr.dlid = address.dlid;
    return attr;
}

QpAttributes to_attributes(const ibv_qp_attr& attr, int mask) {
    if ((mask & ~kSettable) != 0) {
        throw Error(EOPNOTSUPP,
                    fmt::format("ibv_modify_qp() with mask {:#x}: alternate paths, sizes and rates of queue "
                                "pairs cannot be changed",
                                static_cast<unsigned>(mask)));
    }
    QpAttributes to;
    const auto set = [&](int bit, auto& member, auto&& value) {
        if ((mask & bit) != 0) {
            member = value();
        }
    };
    set(IBV_QP_STATE, to.qp_state, [&] { return to_state(number_of(attr.qp_state)); });
    set(IBV_QP_CUR_STATE, to.cur_qp_state, [&] { return to_state(number_of(attr.cur_qp_state)); });
    set(IBV_QP_ACCESS_FLAGS, to.remote_access, [&] {
        return RemoteAccess{.read = (attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) != 0,
                            .write = (attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) != 0,
                            .atomic = (attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) != 0};
    });
    set(IBV_QP_PKEY_INDEX, to.pkey_index, [&] { return attr.pkey_index; });
    set(IBV_QP_PORT, to.port_num, [&] { return attr.port_num; });
    set(IBV_QP_QKEY, to.qkey, [&] { return attr.qkey; });
    set(IBV_QP_AV, to.ah_attr, [&] { return to_address(attr.ah_attr); });
    set(IBV_QP_PATH_MTU, to.path_mtu, [&] { return mtu_bytes(number_of(attr.path_mtu)); });
    set(IBV_QP_TIMEOUT, to.timeout, [&] { return attr.timeout; });
    set(IBV_QP_RETRY_CNT, to.retry_cnt, [&] { return attr.retry_cnt; });
    set(IBV_QP_RNR_RETRY, to.rnr_retry, [&] { return attr.rnr_retry; });
    set(IBV_QP_RQ_PSN, to.rq_psn, [&] { return attr.rq_psn & 0xffffffu; });
    set(IBV_QP_SQ_PSN, to.sq_psn, [&] { return attr.sq_psn & 0xffffffu; });
    set(IBV_QP_MAX_QP_RD_ATOMIC, to.max_rd_atomic, [&] { return attr.max_rd_atomic; });
    set(IBV_QP_MAX_DEST_RD_ATOMIC, to.max_dest_rd_atomic, [&] { return attr.max_dest_rd_atomic; });
    set(IBV_QP_MIN_RNR_TIMER, to.min_rnr_timer, [&] { return attr.min_rnr_timer; });
    set(IBV_QP_DEST_QPN, to.dest_qp_num, [&] { return attr.dest_qp_num; });
    return to;
}

void fill_attr(ibv_qp_attr& attr, const QpQuery& query, ibv_qp_type qp_type) noexcept {
    const QpAttributes& from = query.attributes;
    attr.qp_state = static_cast<ibv_qp_state>(from.qp_state.value_or(VerbsQpState::reset));
    attr.cur_qp_state = attr.qp_state;
    attr.qp_access_flags = access_flags(from.remote_access.value_or(RemoteAccess{}));
    attr.pkey_index = from.pkey_index.value_or(0);
    attr.port_num = from.port_num.value_or(0);
    attr.qkey = from.qkey.value_or(0);
    attr.sq_psn = from.sq_psn.value_or(0);
    attr.path_mig_state = IBV_MIG_MIGRATED;
    if (qp_type == IBV_QPT_UD) {
        return;
    }
    attr.ah_attr = to_ah_attr(from.ah_attr.value_or(AddressAttributes{}));
    attr.path_mtu = to_mtu(from.path_mtu.value_or(0));
    attr.timeout = from.timeout.value_or(0);
    attr.retry_cnt = from.retry_cnt.value_or(0);
    attr.rnr_retry = from.rnr_retry.value_or(0);
    attr.rq_psn = from.rq_psn.value_or(0);
    attr.max_rd_atomic = from.max_rd_atomic.value_or(0);
    attr.max_dest_rd_atomic = from.max_dest_rd_atomic.value_or(0);
    attr.min_rnr_timer = from.min_rnr_timer.value_or(0);
    attr.dest_qp_num = from.dest_qp_num.value_or(0);
}

DeviceAttributes as_served(const DeviceAttributes& attributes) noexcept {
    constexpr std::uint64_t kUnserved = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A |
                                        IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_XRC |
                                        IBV_DEVICE_MANAGED_FLOW_STEERING;
    DeviceAttributes to = attributes;
    to.device_cap_flags &= ~kUnserved;
    to.max_cqe = std::min(to.max_cqe, kCqesMax);
    to.max_qp_wr = std::min(to.max_qp_wr, kQueueDepthMax);
    to.max_srq_wr = std::min(to.max_srq_wr, kQueueDepthMax);
    to.max_sge = std::min(to.max_sge, kSgesMax);
    to.max_srq_sge = std::min(to.max_srq_sge, kSgesMax);
    to.max_mw = 0;
    to.max_mcast_grp = 0;
    to.max_mcast_qp_attach = 0;
    to.max_total_mcast_qp_attach = 0;
    return to;
}

ibv_device_attr to_device_attr(const DeviceAttributes& from) noexcept {
    ibv_device_attr to{};
    static_assert(sizeof to.fw_ver == std::tuple_size_v<decltype(from.fw_ver)>);
    std::memcpy(to.fw_ver, from.fw_ver.data(), sizeof to.fw_ver);
    to.node_guid = from.node_guid;
    to.sys_image_guid = from.sys_image_guid;
    to.max_mr_size = from.max_mr_size;
    to.page_size_cap = from.page_size_cap;
    to.vendor_id = from.vendor_id;
    to.vendor_part_id = from.vendor_part_id;
    to.hw_ver = from.hw_ver;
    const auto count = [](std::uint32_t value) { return static_cast<int>(std::min<std::uint32_t>(value, INT32_MAX)); };
    to.max_qp = count(from.max_qp);
    to.max_qp_wr = count(from.max_qp_wr);
    to.device_cap_flags = static_cast<unsigned>(from.device_cap_flags);
    to.max_sge = count(from.max_sge);
    to.max_sge_rd = count(from.max_sge_rd);
    to.max_cq = count(from.max_cq);
    to.max_cqe = count(from.max_cqe);
    to.max_mr = count(from.max_mr);
    to.max_pd = count(from.max_pd);
    to.max_qp_rd_atom = count(from.max_qp_rd_atom);
    to.max_ee_rd_atom = count(from.max_ee_rd_atom);
    to.max_res_rd_atom = count(from.max_res_rd_atom);
    to.max_qp_init_rd_atom = count(from.max_qp_init_rd_atom);
    to.max_ee_init_rd_atom = count(from.max_ee_init_rd_atom);
    to.atomic_cap = static_cast<ibv_atomic_cap>(from.atomic_cap);
    to.max_ee = count(from.max_ee);
    to.max_rdd = count(from.max_rdd);
    to.max_raw_ipv6_qp = count(from.max_raw_ipv6_qp);
    to.max_raw_ethy_qp = count(from.max_raw_ethy_qp);
    to.max_mw = count(from.max_mw);
    to.max_mcast_grp = count(from.max_mcast_grp);
    to.max_mcast_qp_attach = count(from.max_mcast_qp_attach);
    to.max_total_mcast_qp_attach = count(from.max_total_mcast_qp_attach);
    to.max_ah = count(from.max_ah);
    to.max_fmr = count(from.max_fmr);
    to.max_map_per_fmr = count(from.max_map_per_fmr);
    to.max_srq = count(from.max_srq);
    to.max_srq_wr = count(from.max_srq_wr);
    to.max_srq_sge = count(from.max_srq_sge);
    to.max_pkeys = from.max_pkeys;
    to.local_ca_ack_delay = from.local_ca_ack_delay;
    to.phys_port_cnt = from.phys_port_cnt;
    return to;
}

ibv_port_attr to_port_attr(const PortAttributes& from) noexcept {
    ibv_port_attr to{};
    to.state = static_cast<ibv_port_state>(from.state);
    to.max_mtu = to_mtu(from.max_mtu);
    to.active_mtu = to_mtu(from.active_mtu);
    to.gid_tbl_len = static_cast<int>(from.gid_tbl_len);
    to.port_cap_flags = from.port_cap_flags;
    to.max_msg_sz = from.max_msg_sz;
    to.bad_pkey_cntr = from.bad_pkey_cntr;
    to.qkey_viol_cntr = from.qkey_viol_cntr;
    to.pkey_tbl_len = from.pkey_tbl_len;
    to.lid = from.lid;
    to.sm_lid = from.sm_lid;
    to.lmc = from.lmc;
    to.max_vl_num = from.max_vl_num;
    to.sm_sl = from.sm_sl;
    to.subnet_timeout = from.subnet_timeout;
    to.init_type_reply = from.init_type_reply;
    to.active_width = from.active_width;
    to.active_speed = from.active_speed;
    to.phys_state = from.phys_state;
    to.link_layer = from.link_layer;
    to.flags = from.flags;
    to.port_cap_flags2 = from.port_cap_flags2;
    return to;
}

Access to_access(unsigned access) {
    // Huge pages are a hint of the program, and zero-based addresses are the caller's matter.
    constexpr unsigned kServed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                                 IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
    if ((access & ~kServed) != 0) {
        throw Error(EOPNOTSUPP, fmt::format("registering memory with access {:#x}: on-demand paging is not served",
                                            access & ~kServed));
    }
    return {.local_write = (access & IBV_ACCESS_LOCAL_WRITE) != 0,
            .remote_read = (access & IBV_ACCESS_REMOTE_READ) != 0,
            .remote_write = (access & IBV_ACCESS_REMOTE_WRITE) != 0,
            .remote_atomic = (access & IBV_ACCESS_REMOTE_ATOMIC) != 0,
            .window_bind = (access & IBV_ACCESS_MW_BIND) != 0,
            .relaxed_ordering = (access & IBV_ACCESS_RELAXED_ORDERING) != 0};
}

ibv_wc_status to_wc_status(Status status) noexcept {
    if (static_cast<unsigned>(status) < 128) {
        return static_cast<ibv_wc_status>(status);
    }
    switch (status) {
        case Status::post_refused:
        case Status::request_refused: return IBV_WC_LOC_QP_OP_ERR;
        default: return IBV_WC_WR_FLUSH_ERR;
    }
}

ibv_wc_opcode to_wc_opcode(CompletionOpcode opcode) noexcept {
    switch (opcode) {
        case CompletionOpcode::recv: return IBV_WC_RECV;
        case CompletionOpcode::recv_rdma_with_imm: return IBV_WC_RECV_RDMA_WITH_IMM;
        default: return static_cast<ibv_wc_opcode>(opcode);
    }
}

unsigned to_wc_flags(const WideCompletion& completion) noexcept {
    return bit_if((completion.flags & kWithGrh) != 0, IBV_WC_GRH) |
           bit_if((completion.flags & kWithImm) != 0, IBV_WC_WITH_IMM) |
           bit_if((completion.flags & kWithInv) != 0, IBV_WC_WITH_INV);
}

int errno_of(Refusal refusal) noexcept {
    switch (refusal) {
        case Refusal::none: return 0;
        case Refusal::submission_ring_full:
        case Refusal::completion_ring_full:
        case Refusal::send_queue_full:
        case Refusal::receive_queue_full:
        case Refusal::srq_full: return ENOMEM;
        default: return EINVAL;
    }
}

}  // namespace pollcore::served
