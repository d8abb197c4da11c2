// InfiniBand Architecture Specification 1.4, volume 1, 10.3.1 and table "QP State Transition Properties" in 11.2.5.2.
#include "hca_transitions.hpp"

#include <algorithm>

namespace mlx5_model {
namespace {

struct Masks {
    int ud = 0;
    int uc = 0;
    int rc = 0;
    [[nodiscard]] int of(ibv_qp_type type) const {
        switch (type) {
            case IBV_QPT_RC: return rc;
            case IBV_QPT_UC: return uc;
            default: return ud;
        }
    }
};

struct Move {
    ibv_qp_state from;
    ibv_qp_state to;
    Masks required;
    Masks optional;
    bool not_of_rc = false;
};

constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kInitUd = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr int kPath = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kAlternate = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS;
constexpr int kMoving = kAlternate | IBV_QP_PATH_MIG_STATE;
// The hardware can leave RTS by itself, so the caller may name the state that it assumes (IBV_QP_CUR_STATE).
constexpr int kToRts = IBV_QP_CUR_STATE | kMoving;
constexpr int kToRtsUd = IBV_QP_CUR_STATE | IBV_QP_QKEY;
constexpr int kRetries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

constexpr Move kMoves[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, {kInitUd, kInit, kInit}, {}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {}, {kInitUd, kInit, kInit}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {0, kPath, kPath | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
     {IBV_QP_PKEY_INDEX | IBV_QP_QKEY, kAlternate | IBV_QP_PKEY_INDEX, kAlternate | IBV_QP_PKEY_INDEX}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {IBV_QP_SQ_PSN, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN | kRetries},
     {kToRtsUd, kToRts, kToRts | IBV_QP_MIN_RNR_TIMER}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {}, {kToRtsUd, kToRts, kToRts | IBV_QP_MIN_RNR_TIMER}},
    {IBV_QPS_RTS,
     IBV_QPS_SQD,
     {},
     {IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {}, {kToRtsUd, kToRts, kToRts | IBV_QP_MIN_RNR_TIMER}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {},
     {IBV_QP_PKEY_INDEX | IBV_QP_QKEY, kMoving | IBV_QP_AV | IBV_QP_PKEY_INDEX,
      kMoving | IBV_QP_AV | IBV_QP_PKEY_INDEX | IBV_QP_PORT | kRetries | IBV_QP_MAX_DEST_RD_ATOMIC |
          IBV_QP_MIN_RNR_TIMER}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {}, {kToRtsUd, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS, 0}, true},
};

}  // namespace

bool may_modify(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask) {
    mask &= ~IBV_QP_STATE;
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
        // The kernel's table has no transition from RESET to ERR.
        return mask == 0 && !(from == IBV_QPS_RESET && to == IBV_QPS_ERR);
    }
    return std::ranges::any_of(kMoves, [&](const Move& move) {
        const int required = move.required.of(type);
        const int optional = move.optional.of(type);
        return move.from == from && move.to == to && !(move.not_of_rc && type == IBV_QPT_RC) &&
               (mask & required) == required && (mask & ~(required | optional)) == 0;
    });
}

}  // namespace mlx5_model
