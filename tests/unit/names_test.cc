// Checks that statuses have the names, numbers and texts of the verbs, up to the last status that the installed
// rdma-core knows. Opcodes and flags have the numbers of the verbs.
#include <cstring>

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include "pollcore/completion.hpp"
#include "pollcore/session.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {
namespace {

TEST(Names, EveryStatusOfTheVerbsHasItsNumberNameAndText) {
#define STATUS(lower, upper)                                             \
    EXPECT_EQ(static_cast<int>(Status::lower), static_cast<int>(upper)); \
    EXPECT_EQ(status_name(Status::lower), #upper);                       \
    EXPECT_EQ(status_text(Status::lower), ibv_wc_status_str(upper));     \
    ++known;
    int known = 0;
    STATUS(success, IBV_WC_SUCCESS)
    STATUS(loc_len_err, IBV_WC_LOC_LEN_ERR)
    STATUS(loc_qp_op_err, IBV_WC_LOC_QP_OP_ERR)
    STATUS(loc_eec_op_err, IBV_WC_LOC_EEC_OP_ERR)
    STATUS(loc_prot_err, IBV_WC_LOC_PROT_ERR)
    STATUS(wr_flush_err, IBV_WC_WR_FLUSH_ERR)
    STATUS(mw_bind_err, IBV_WC_MW_BIND_ERR)
    STATUS(bad_resp_err, IBV_WC_BAD_RESP_ERR)
    STATUS(loc_access_err, IBV_WC_LOC_ACCESS_ERR)
    STATUS(rem_inv_req_err, IBV_WC_REM_INV_REQ_ERR)
    STATUS(rem_access_err, IBV_WC_REM_ACCESS_ERR)
    STATUS(rem_op_err, IBV_WC_REM_OP_ERR)
    STATUS(retry_exc_err, IBV_WC_RETRY_EXC_ERR)
    STATUS(rnr_retry_exc_err, IBV_WC_RNR_RETRY_EXC_ERR)
    STATUS(loc_rdd_viol_err, IBV_WC_LOC_RDD_VIOL_ERR)
    STATUS(rem_inv_rd_req_err, IBV_WC_REM_INV_RD_REQ_ERR)
    STATUS(rem_abort_err, IBV_WC_REM_ABORT_ERR)
    STATUS(inv_eecn_err, IBV_WC_INV_EECN_ERR)
    STATUS(inv_eec_state_err, IBV_WC_INV_EEC_STATE_ERR)
    STATUS(fatal_err, IBV_WC_FATAL_ERR)
    STATUS(resp_timeout_err, IBV_WC_RESP_TIMEOUT_ERR)
    STATUS(general_err, IBV_WC_GENERAL_ERR)
    STATUS(tm_err, IBV_WC_TM_ERR)
    STATUS(tm_rndv_incomplete, IBV_WC_TM_RNDV_INCOMPLETE)
#undef STATUS
    // The number behind the last status must be unknown. If this fails, rdma-core has a new status: add it above.
    EXPECT_STREQ(ibv_wc_status_str(static_cast<ibv_wc_status>(known)), "unknown");
}

TEST(Names, AreThereForTheRuntimesOwnStatusesToo) {
    for (const Status status :
         {Status::post_refused, Status::request_refused, Status::qp_closed, Status::session_closed,
          Status::device_removed, Status::daemon_gone, Status::srq_closed}) {
        EXPECT_TRUE(status_name(status).starts_with("POLLCORE_")) << static_cast<int>(status);
        EXPECT_FALSE(status_text(status).empty()) << static_cast<int>(status);
        EXPECT_STREQ(ibv_wc_status_str(static_cast<ibv_wc_status>(status)), "unknown") << "the verbs use this number";
    }
}

TEST(Names, OpcodesAndFlagsHaveTheNumbersOfTheVerbs) {
    EXPECT_EQ(static_cast<int>(Opcode::rdma_write), IBV_WR_RDMA_WRITE);
    EXPECT_EQ(static_cast<int>(Opcode::rdma_write_with_imm), IBV_WR_RDMA_WRITE_WITH_IMM);
    EXPECT_EQ(static_cast<int>(Opcode::send), IBV_WR_SEND);
    EXPECT_EQ(static_cast<int>(Opcode::send_with_imm), IBV_WR_SEND_WITH_IMM);
    EXPECT_EQ(static_cast<int>(Opcode::rdma_read), IBV_WR_RDMA_READ);
    EXPECT_EQ(static_cast<int>(Opcode::atomic_cmp_and_swp), IBV_WR_ATOMIC_CMP_AND_SWP);
    EXPECT_EQ(static_cast<int>(Opcode::atomic_fetch_and_add), IBV_WR_ATOMIC_FETCH_AND_ADD);
    EXPECT_EQ(static_cast<int>(CompletionOpcode::send), IBV_WC_SEND);
    EXPECT_EQ(static_cast<int>(CompletionOpcode::rdma_write), IBV_WC_RDMA_WRITE);
    EXPECT_EQ(static_cast<int>(CompletionOpcode::rdma_read), IBV_WC_RDMA_READ);
    EXPECT_EQ(static_cast<int>(CompletionOpcode::comp_swap), IBV_WC_COMP_SWAP);
    EXPECT_EQ(static_cast<int>(CompletionOpcode::fetch_add), IBV_WC_FETCH_ADD);
    EXPECT_EQ(static_cast<int>(CompletionOpcode::recv), IBV_WC_RECV);
    EXPECT_EQ(static_cast<int>(CompletionOpcode::recv_rdma_with_imm), IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(static_cast<int>(kFence), IBV_SEND_FENCE);
    EXPECT_EQ(static_cast<int>(kSignaled), IBV_SEND_SIGNALED);
    EXPECT_EQ(static_cast<int>(kSolicited), IBV_SEND_SOLICITED);
    EXPECT_EQ(static_cast<int>(kInline), IBV_SEND_INLINE);
}

}  // namespace
}  // namespace pollcore
