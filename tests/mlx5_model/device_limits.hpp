// The device's limits, similar to the limits of a ConnectX-6.
#pragma once

#include <endian.h>

#include <cstdint>

#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>

#include "hca_fabric.hpp"

namespace mlx5_model {

inline constexpr std::uint32_t kCompletionVectors = 2;
inline constexpr std::uint32_t kSendBlocksMax = 32768;
inline constexpr std::uint32_t kReceivesMax = 32768;
inline constexpr std::uint32_t kSharedReceivesMax = 32767;
inline constexpr std::uint32_t kSgesMax = 30;
inline constexpr std::uint32_t kSharedSgesMax = 31;
inline constexpr std::uint32_t kQueuePairsMax = 32768;
inline constexpr std::uint32_t kCompletionsMax = 4194303;
inline constexpr std::uint32_t kSrqsMax = 8192;
inline constexpr std::uint32_t kPdsMax = 65536;
inline constexpr std::uint16_t kModerationCountMax = 65535;
inline constexpr std::uint16_t kModerationPeriodMax = 4095;
inline constexpr std::uint64_t kTimestampMask = 0x7fffffffffffffff;  // as in mlx5_ib
inline constexpr std::uint64_t kCoreClockKhz = 1'000'000;            // the time in a CQE is in nanoseconds

inline ib_uverbs_query_device_resp device_limits(const DeviceFacts& device) {
    ib_uverbs_query_device_resp limits{};
    limits.fw_ver = 20ull << 32 | 99ull << 16 | 1000;
    limits.node_guid = limits.sys_image_guid = device.node_guid;
    limits.max_mr_size = ~0ull;
    limits.page_size_cap = 0xfffffffffffff000;
    limits.vendor_id = 0x2c9;
    limits.vendor_part_id = 4123;
    limits.max_qp = kQueuePairsMax;
    limits.max_qp_wr = kSendBlocksMax;
    limits.device_cap_flags = IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                              IBV_DEVICE_RC_RNR_NAK_GEN;
    limits.max_sge = limits.max_sge_rd = kSgesMax;
    limits.max_cq = 65536;
    limits.max_cqe = kCompletionsMax;
    limits.max_mr = limits.max_mw = 65000;
    limits.max_pd = kPdsMax;
    limits.max_qp_rd_atom = limits.max_qp_init_rd_atom = Hca::kReadsMax;
    limits.max_res_rd_atom = kQueuePairsMax * Hca::kReadsMax;
    limits.atomic_cap = IBV_ATOMIC_HCA;
    limits.max_ah = 0x7fffffff;
    limits.max_srq = kSrqsMax;
    limits.max_srq_wr = kSharedReceivesMax;
    limits.max_srq_sge = kSharedSgesMax;
    limits.max_pkeys = 128;
    limits.local_ca_ack_delay = 16;
    limits.phys_port_cnt = 1;
    return limits;
}

}  // namespace mlx5_model
