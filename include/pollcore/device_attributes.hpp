// What a device, its port, and the tables of that port are, as the verbs report it: ibv_query_device_ex(3),
// ibv_query_port(3), ibv_query_gid_ex(3), ibv_query_pkey(3).
#pragma once

#include <array>
#include <cstdint>

namespace pollcore {

/// `struct ibv_device_attr`, and of `struct ibv_device_attr_ex` the members about completion time stamps. The software
/// device reports 0 for what it does not have.
struct DeviceAttributes {
    std::uint64_t node_guid = 0;       ///< in network byte order, as the verbs have it
    std::uint64_t sys_image_guid = 0;  ///< in network byte order
    std::uint64_t max_mr_size = 0;
    std::uint64_t page_size_cap = 0;
    std::uint64_t device_cap_flags = 0;  ///< IBV_DEVICE_*; from device_cap_flags_ex if the provider has that
    std::uint64_t completion_timestamp_mask = 0;
    std::uint64_t hca_core_clock = 0;  ///< kHz
    std::uint32_t vendor_id = 0;
    std::uint32_t vendor_part_id = 0;
    std::uint32_t hw_ver = 0;
    std::uint32_t max_qp = 0;
    std::uint32_t max_qp_wr = 0;
    std::uint32_t max_sge = 0;
    std::uint32_t max_sge_rd = 0;
    std::uint32_t max_cq = 0;
    std::uint32_t max_cqe = 0;
    std::uint32_t max_mr = 0;
    std::uint32_t max_pd = 0;
    std::uint32_t max_qp_rd_atom = 0;
    std::uint32_t max_ee_rd_atom = 0;
    std::uint32_t max_res_rd_atom = 0;
    std::uint32_t max_qp_init_rd_atom = 0;
    std::uint32_t max_ee_init_rd_atom = 0;
    std::uint32_t atomic_cap = 0;  ///< enum ibv_atomic_cap
    std::uint32_t max_ee = 0;
    std::uint32_t max_rdd = 0;
    std::uint32_t max_mw = 0;
    std::uint32_t max_raw_ipv6_qp = 0;
    std::uint32_t max_raw_ethy_qp = 0;
    std::uint32_t max_mcast_grp = 0;
    std::uint32_t max_mcast_qp_attach = 0;
    std::uint32_t max_total_mcast_qp_attach = 0;
    std::uint32_t max_ah = 0;
    std::uint32_t max_fmr = 0;
    std::uint32_t max_map_per_fmr = 0;
    std::uint32_t max_srq = 0;
    std::uint32_t max_srq_wr = 0;
    std::uint32_t max_srq_sge = 0;
    std::uint16_t max_pkeys = 0;
    std::uint8_t local_ca_ack_delay = 0;
    std::uint8_t phys_port_cnt = 0;  ///< of the device; pollcore only uses the port of the configuration
    std::array<char, 64> fw_ver{};   ///< ends with a zero byte
};

/// `struct ibv_port_attr` of the port that the configuration names.
struct PortAttributes {
    std::uint32_t gid_tbl_len = 0;
    std::uint32_t port_cap_flags = 0;
    std::uint32_t max_msg_sz = 0;  ///< bytes
    std::uint32_t bad_pkey_cntr = 0;
    std::uint32_t qkey_viol_cntr = 0;
    std::uint16_t pkey_tbl_len = 0;
    std::uint16_t max_mtu = 0;     ///< bytes
    std::uint16_t active_mtu = 0;  ///< bytes
    std::uint16_t lid = 0;
    std::uint16_t sm_lid = 0;
    std::uint16_t port_cap_flags2 = 0;
    std::uint8_t port_num = 0;
    std::uint8_t state = 0;  ///< enum ibv_port_state: 4 is active
    std::uint8_t lmc = 0;
    std::uint8_t max_vl_num = 0;
    std::uint8_t sm_sl = 0;
    std::uint8_t subnet_timeout = 0;
    std::uint8_t init_type_reply = 0;
    std::uint8_t active_width = 0;
    std::uint8_t active_speed = 0;
    std::uint8_t phys_state = 0;
    std::uint8_t link_layer = 0;  ///< 1: InfiniBand; 2: Ethernet
    std::uint8_t flags = 0;
};

/// Values of `enum ibv_gid_type`.
enum class GidType : std::uint32_t { ib, roce_v1, roce_v2 };

/// An entry of a port's GID table that is in use; `struct ibv_gid_entry`.
struct GidAttributes {
    std::array<std::uint8_t, 16> gid{};  ///< in network byte order
    std::uint32_t gid_index = 0;         ///< for AddressAttributes::sgid_index
    GidType gid_type = GidType::roce_v2;
    std::uint32_t ndev_ifindex = 0;  ///< index of the network interface; 0: none
};

}  // namespace pollcore
