// What libpollcore-verbs.so makes of the structures of verbs.h, and back.
#include <cerrno>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "pollcore-run/verbs/conversions.hpp"

namespace pollcore::served {
namespace {

int refusal_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.code().value();
    }
    return 0;
}

ibv_qp_attr all_different() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.cur_qp_state = IBV_QPS_RTR;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    attr.pkey_index = 3;
    attr.port_num = 1;
    attr.qkey = 0x11111111;
    attr.ah_attr.is_global = 1;
    for (std::size_t i = 0; i < sizeof attr.ah_attr.grh.dgid.raw; ++i) {
        attr.ah_attr.grh.dgid.raw[i] = static_cast<std::uint8_t>(i + 1);
    }
    attr.ah_attr.grh.flow_label = 0x12345;
    attr.ah_attr.grh.sgid_index = 7;
    attr.ah_attr.grh.hop_limit = 9;
    attr.ah_attr.grh.traffic_class = 11;
    attr.ah_attr.sl = 2;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.src_path_bits = 4;
    attr.ah_attr.dlid = 77;
    attr.path_mtu = IBV_MTU_2048;
    attr.timeout = 15;
    attr.retry_cnt = 5;
    attr.rnr_retry = 6;
    attr.rq_psn = 0xabcdef;
    attr.sq_psn = 0x123456;
    attr.max_rd_atomic = 13;
    attr.max_dest_rd_atomic = 14;
    attr.min_rnr_timer = 12;
    attr.dest_qp_num = 0x4711;
    return attr;
}

constexpr int kAll = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                     IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN;

TEST(ServedConversions, TheMaskSaysWhichAttributesAreSet) {
    EXPECT_EQ(to_attributes(all_different(), 0), QpAttributes{});
    QpAttributes one;
    one.retry_cnt = 5;
    EXPECT_EQ(to_attributes(all_different(), IBV_QP_RETRY_CNT), one);
    one = {};
    one.sq_psn = 0x123456;
    EXPECT_EQ(to_attributes(all_different(), IBV_QP_SQ_PSN), one);
}

TEST(ServedConversions, AttributesComeBackAsTheyWere) {
    const ibv_qp_attr attr = all_different();
    ibv_qp_attr back{};
    fill_attr(back, {.attributes = to_attributes(attr, kAll), .cap = {}}, IBV_QPT_RC);
    EXPECT_EQ(back.qp_state, attr.qp_state);
    EXPECT_EQ(back.cur_qp_state, attr.qp_state) << "ibv_query_qp(3) has one state";
    EXPECT_EQ(back.qp_access_flags, attr.qp_access_flags);
    EXPECT_EQ(back.pkey_index, attr.pkey_index);
    EXPECT_EQ(back.port_num, attr.port_num);
    EXPECT_EQ(back.qkey, attr.qkey);
    EXPECT_EQ(std::memcmp(&back.ah_attr.grh.dgid, &attr.ah_attr.grh.dgid, sizeof back.ah_attr.grh.dgid), 0);
    EXPECT_EQ(back.ah_attr.grh.flow_label, attr.ah_attr.grh.flow_label);
    EXPECT_EQ(back.ah_attr.grh.sgid_index, attr.ah_attr.grh.sgid_index);
    EXPECT_EQ(back.ah_attr.grh.hop_limit, attr.ah_attr.grh.hop_limit);
    EXPECT_EQ(back.ah_attr.grh.traffic_class, attr.ah_attr.grh.traffic_class);
    EXPECT_EQ(back.ah_attr.is_global, 1);
    EXPECT_EQ(back.ah_attr.sl, attr.ah_attr.sl);
    EXPECT_EQ(back.ah_attr.port_num, attr.ah_attr.port_num);
    EXPECT_EQ(back.ah_attr.src_path_bits, attr.ah_attr.src_path_bits);
    EXPECT_EQ(back.ah_attr.dlid, attr.ah_attr.dlid);
    EXPECT_EQ(back.path_mtu, attr.path_mtu);
    EXPECT_EQ(back.timeout, attr.timeout);
    EXPECT_EQ(back.retry_cnt, attr.retry_cnt);
    EXPECT_EQ(back.rnr_retry, attr.rnr_retry);
    EXPECT_EQ(back.rq_psn, attr.rq_psn);
    EXPECT_EQ(back.sq_psn, attr.sq_psn);
    EXPECT_EQ(back.max_rd_atomic, attr.max_rd_atomic);
    EXPECT_EQ(back.max_dest_rd_atomic, attr.max_dest_rd_atomic);
    EXPECT_EQ(back.min_rnr_timer, attr.min_rnr_timer);
    EXPECT_EQ(back.dest_qp_num, attr.dest_qp_num);
}

TEST(ServedConversions, WhatCannotBeSetIsRefused) {
    ibv_qp_attr attr = all_different();
    for (const int bit :
         {IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CAP, IBV_QP_RATE_LIMIT, IBV_QP_EN_SQD_ASYNC_NOTIFY}) {
        EXPECT_EQ(refusal_of([&] { (void)to_attributes(attr, bit); }), EOPNOTSUPP) << bit;
    }
    attr.path_mtu = static_cast<ibv_mtu>(0);
    EXPECT_EQ(refusal_of([&] { (void)to_attributes(attr, IBV_QP_PATH_MTU); }), EINVAL);
    attr.path_mtu = static_cast<ibv_mtu>(6);
    EXPECT_EQ(refusal_of([&] { (void)to_attributes(attr, IBV_QP_PATH_MTU); }), EINVAL);
    attr.qp_state = static_cast<ibv_qp_state>(7);
    EXPECT_EQ(refusal_of([&] { (void)to_attributes(attr, IBV_QP_STATE); }), EINVAL);
}

TEST(ServedConversions, AFlowLabelHasTwentyBits) {
    ibv_ah_attr attr{};
    attr.grh.flow_label = 0xffffffff;
    EXPECT_EQ(to_address(attr), AddressAttributes{.port_num = 0}) << "without is_global there is no GRH";
    attr.is_global = 1;
    EXPECT_EQ(to_address(attr).flow_label, 0xfffffu) << "as UCX has it";
}

TEST(ServedConversions, EachMtuHasItsCode) {
    for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
        ibv_qp_attr attr{};
        attr.path_mtu = mtu;
        EXPECT_EQ(to_mtu(to_attributes(attr, IBV_QP_PATH_MTU).path_mtu.value()), mtu);
    }
}

TEST(ServedConversions, AccessHasTheRightsThatAreServed) {
    const Access all = to_access(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_RELAXED_ORDERING);
    EXPECT_TRUE(all.local_write && all.remote_write && all.remote_read && all.remote_atomic && all.window_bind &&
                all.relaxed_ordering);
    const Access none = to_access(0);
    EXPECT_FALSE(none.local_write || none.remote_write || none.remote_read || none.remote_atomic || none.window_bind ||
                 none.relaxed_ordering);
    EXPECT_EQ(refusal_of([] { (void)to_access(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND); }), EOPNOTSUPP);
}

TEST(ServedConversions, AStatusOfTheRuntimeIsTheNearestOfTheVerbs) {
    EXPECT_EQ(to_wc_status(Status::success), IBV_WC_SUCCESS);
    EXPECT_EQ(to_wc_status(Status::retry_exc_err), IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(to_wc_status(Status::tm_rndv_incomplete), IBV_WC_TM_RNDV_INCOMPLETE);
    EXPECT_EQ(to_wc_status(Status::post_refused), IBV_WC_LOC_QP_OP_ERR);
    for (const Status status :
         {Status::qp_closed, Status::session_closed, Status::device_removed, Status::daemon_gone, Status::srq_closed}) {
        EXPECT_EQ(to_wc_status(status), IBV_WC_WR_FLUSH_ERR) << status_name(status);
    }
}

TEST(ServedConversions, OpcodesOfCompletionsAreThoseOfTheVerbs) {
    EXPECT_EQ(to_wc_opcode(CompletionOpcode::send), IBV_WC_SEND);
    EXPECT_EQ(to_wc_opcode(CompletionOpcode::rdma_write), IBV_WC_RDMA_WRITE);
    EXPECT_EQ(to_wc_opcode(CompletionOpcode::rdma_read), IBV_WC_RDMA_READ);
    EXPECT_EQ(to_wc_opcode(CompletionOpcode::comp_swap), IBV_WC_COMP_SWAP);
    EXPECT_EQ(to_wc_opcode(CompletionOpcode::fetch_add), IBV_WC_FETCH_ADD);
    EXPECT_EQ(to_wc_opcode(CompletionOpcode::local_inv), IBV_WC_LOCAL_INV);
    EXPECT_EQ(to_wc_opcode(CompletionOpcode::recv), IBV_WC_RECV);
    EXPECT_EQ(to_wc_opcode(CompletionOpcode::recv_rdma_with_imm), IBV_WC_RECV_RDMA_WITH_IMM);
}

TEST(ServedConversions, FlagsOfCompletionsAreThoseOfTheVerbs) {
    WideCompletion completion;
    EXPECT_EQ(to_wc_flags(completion), 0u);
    completion.flags = kWithImm | kFromRecvQueue;
    EXPECT_EQ(to_wc_flags(completion), static_cast<unsigned>(IBV_WC_WITH_IMM));
    completion.flags = kWithGrh | kWithInv | kDatagram;
    EXPECT_EQ(to_wc_flags(completion), static_cast<unsigned>(IBV_WC_GRH | IBV_WC_WITH_INV));
}

TEST(ServedConversions, RefusalsAreTheErrorsOfProviders) {
    EXPECT_EQ(errno_of(Refusal::none), 0);
    for (const Refusal refusal :
         {Refusal::send_queue_full, Refusal::receive_queue_full, Refusal::srq_full, Refusal::completion_ring_full}) {
        EXPECT_EQ(errno_of(refusal), ENOMEM) << refusal_name(refusal);
    }
    for (const Refusal refusal : {Refusal::not_connected, Refusal::too_many_sges, Refusal::inline_too_long,
                                  Refusal::bad_opcode, Refusal::stale_handle}) {
        EXPECT_EQ(errno_of(refusal), EINVAL) << refusal_name(refusal);
    }
}

TEST(ServedConversions, NumbersThatAreTooLargeForTheVerbsAreCut) {
    DeviceAttributes from;
    from.max_cq = 0xffffffff;
    from.max_qp = 12;
    from.node_guid = 0x0102030405060708;
    std::strcpy(from.fw_ver.data(), "1.2.3");
    const ibv_device_attr to = to_device_attr(from);
    EXPECT_EQ(to.max_cq, INT32_MAX);
    EXPECT_EQ(to.max_qp, 12);
    EXPECT_EQ(to.node_guid, from.node_guid);
    EXPECT_STREQ(to.fw_ver, "1.2.3");
}

}  // namespace
}  // namespace pollcore::served
