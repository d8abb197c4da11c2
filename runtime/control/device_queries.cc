// What the devices, their ports and tables are, as the verbs report it.
#include <cstring>

#include "connect/transitions.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {

DeviceAttributes RuntimeState::query_device(const std::string& device_name) {
    const ibv_device_attr_ex found = executor_->run([&] { return device_slot(device_name).device->query_device(); });
    const ibv_device_attr& attr = found.orig_attr;
    const auto number = [](int n) { return static_cast<std::uint32_t>(n); };
    DeviceAttributes result{
        .node_guid = attr.node_guid,
        .sys_image_guid = attr.sys_image_guid,
        .max_mr_size = attr.max_mr_size,
        .page_size_cap = attr.page_size_cap,
        .device_cap_flags = attr.device_cap_flags | found.device_cap_flags_ex,
        .completion_timestamp_mask = found.completion_timestamp_mask,
        .hca_core_clock = found.hca_core_clock,
        .vendor_id = attr.vendor_id,
        .vendor_part_id = attr.vendor_part_id,
        .hw_ver = attr.hw_ver,
        .max_qp = number(attr.max_qp),
        .max_qp_wr = number(attr.max_qp_wr),
        .max_sge = number(attr.max_sge),
        .max_sge_rd = number(attr.max_sge_rd),
        .max_cq = number(attr.max_cq),
        .max_cqe = number(attr.max_cqe),
        .max_mr = number(attr.max_mr),
        .max_pd = number(attr.max_pd),
        .max_qp_rd_atom = number(attr.max_qp_rd_atom),
        .max_ee_rd_atom = number(attr.max_ee_rd_atom),
        .max_res_rd_atom = number(attr.max_res_rd_atom),
        .max_qp_init_rd_atom = number(attr.max_qp_init_rd_atom),
        .max_ee_init_rd_atom = number(attr.max_ee_init_rd_atom),
        .atomic_cap = static_cast<std::uint32_t>(attr.atomic_cap),
        .max_ee = number(attr.max_ee),
        .max_rdd = number(attr.max_rdd),
        .max_mw = number(attr.max_mw),
        .max_raw_ipv6_qp = number(attr.max_raw_ipv6_qp),
        .max_raw_ethy_qp = number(attr.max_raw_ethy_qp),
        .max_mcast_grp = number(attr.max_mcast_grp),
        .max_mcast_qp_attach = number(attr.max_mcast_qp_attach),
        .max_total_mcast_qp_attach = number(attr.max_total_mcast_qp_attach),
        .max_ah = number(attr.max_ah),
        .max_fmr = number(attr.max_fmr),
        .max_map_per_fmr = number(attr.max_map_per_fmr),
        .max_srq = number(attr.max_srq),
        .max_srq_wr = number(attr.max_srq_wr),
        .max_srq_sge = number(attr.max_srq_sge),
        .max_pkeys = attr.max_pkeys,
        .local_ca_ack_delay = attr.local_ca_ack_delay,
        .phys_port_cnt = attr.phys_port_cnt,
    };
    static_assert(sizeof(attr.fw_ver) == std::tuple_size_v<decltype(result.fw_ver)>);
    std::memcpy(result.fw_ver.data(), attr.fw_ver, result.fw_ver.size() - 1);
    return result;
}

PortAttributes RuntimeState::query_port(const std::string& device_name) {
    return executor_->run([&] {
        Device& device = *device_slot(device_name).device;
        const ibv_port_attr attr = device.query_port();
        return PortAttributes{
            .gid_tbl_len = static_cast<std::uint32_t>(attr.gid_tbl_len),
            .port_cap_flags = attr.port_cap_flags,
            .max_msg_sz = attr.max_msg_sz,
            .bad_pkey_cntr = attr.bad_pkey_cntr,
            .qkey_viol_cntr = attr.qkey_viol_cntr,
            .pkey_tbl_len = attr.pkey_tbl_len,
            .max_mtu = mtu_to_bytes(attr.max_mtu),
            .active_mtu = mtu_to_bytes(attr.active_mtu),
            .lid = attr.lid,
            .sm_lid = attr.sm_lid,
            .port_cap_flags2 = attr.port_cap_flags2,
            .port_num = device.port(),
            .state = static_cast<std::uint8_t>(attr.state),
            .lmc = attr.lmc,
            .max_vl_num = attr.max_vl_num,
            .sm_sl = attr.sm_sl,
            .subnet_timeout = attr.subnet_timeout,
            .init_type_reply = attr.init_type_reply,
            .active_width = attr.active_width,
            .active_speed = attr.active_speed,
            .phys_state = attr.phys_state,
            .link_layer = attr.link_layer,
            .flags = attr.flags,
        };
    });
}

std::vector<GidAttributes> RuntimeState::gids(const std::string& device_name) {
    const std::vector<GidEntry> entries = executor_->run([&] { return device_slot(device_name).device->gids(); });
    std::vector<GidAttributes> result;
    for (const GidEntry& entry : entries) {
        GidAttributes& gid = result.emplace_back();
        std::memcpy(gid.gid.data(), entry.gid.raw, gid.gid.size());
        gid.gid_index = entry.index;
        gid.gid_type = static_cast<GidType>(entry.type);
        gid.ndev_ifindex = entry.ifindex;
    }
    return result;
}

std::uint16_t RuntimeState::query_pkey(std::uint32_t index, const std::string& device_name) {
    return executor_->run([&] { return device_slot(device_name).device->query_pkey(index); });
}

}  // namespace pollcore
