#include <array>

#include <gtest/gtest.h>

#include "hca_transitions.hpp"

namespace mlx5_model {
namespace {

constexpr std::array kTypes{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
constexpr std::array kStates{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                             IBV_QPS_SQD,   IBV_QPS_SQE,  IBV_QPS_ERR};
// The checked attributes range from IBV_QP_CUR_STATE to IBV_QP_DEST_QPN.
constexpr int kAttributes = 21;

struct Row {
    ibv_qp_type type;
    ibv_qp_state from;
    ibv_qp_state to;
    int required;
    int optional;
};

// The kernel's qp_state_table, row by row.
constexpr Row kRows[] = {
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE},
    {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE},
    {IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE},
    {IBV_QPT_UD, IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE},
    {IBV_QPT_UD, IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPT_UC, IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
    {IBV_QPT_UD, IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
};

const Row* row_of(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
    for (const Row& row : kRows) {
        if (row.type == type && row.from == from && row.to == to) {
            return &row;
        }
    }
    return nullptr;
}

TEST(Transitions, EachRowWantsItsAttributesAndNoOthers) {
    for (const Row& row : kRows) {
        SCOPED_TRACE(testing::Message() << "type " << row.type << " from " << row.from << " to " << row.to);
        EXPECT_TRUE(may_modify(row.type, row.from, row.to, row.required));
        EXPECT_TRUE(may_modify(row.type, row.from, row.to, row.required | row.optional | IBV_QP_STATE));
        for (int bit = IBV_QP_CUR_STATE; bit < 1 << kAttributes; bit <<= 1) {
            if ((row.required & bit) != 0) {
                EXPECT_FALSE(may_modify(row.type, row.from, row.to, row.required & ~bit))
                    << "without " << std::hex << bit;
            } else {
                EXPECT_EQ(may_modify(row.type, row.from, row.to, row.required | bit), (row.optional & bit) != 0)
                    << "with " << std::hex << bit;
            }
        }
    }
}

TEST(Transitions, ThereAreNoOtherWaysButToResetAndToError) {
    for (const ibv_qp_type type : kTypes) {
        for (const ibv_qp_state from : kStates) {
            for (const ibv_qp_state to : kStates) {
                SCOPED_TRACE(testing::Message() << "type " << type << " from " << from << " to " << to);
                if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
                    EXPECT_EQ(may_modify(type, from, to, IBV_QP_STATE), !(from == IBV_QPS_RESET && to == IBV_QPS_ERR));
                    EXPECT_FALSE(may_modify(type, from, to, IBV_QP_STATE | IBV_QP_CUR_STATE));
                    EXPECT_FALSE(may_modify(type, from, to, IBV_QP_STATE | IBV_QP_QKEY));
                } else if (row_of(type, from, to) == nullptr) {
                    for (const Row& row : kRows) {
                        EXPECT_FALSE(may_modify(type, from, to, row.required | IBV_QP_STATE));
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace mlx5_model
