// The transitions of queue pairs as the kernel has them: `qp_state_table` and ib_modify_qp_is_ok() of
// drivers/infiniband/core/verbs.c, for RC, UC and UD.
#pragma once

#include <initializer_list>

#include <infiniband/verbs.h>

namespace pollcore::test {

/// Attributes and moves that libpollcore-verbs.so does not serve.
inline constexpr int kNotServed =
    IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_CAP | IBV_QP_RATE_LIMIT;

struct KernelMove {
    bool valid = false;
    int required = 0;
    int optional = 0;
};

inline KernelMove kernel_move(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
    const bool is_rc = type == IBV_QPT_RC;
    const bool is_ud = type == IBV_QPT_UD;
    const int rights = is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    const int migration = is_ud ? 0 : IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
    const int timer = is_rc ? IBV_QP_MIN_RNR_TIMER : 0;
    const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | rights;
    const int running = IBV_QP_CUR_STATE | rights | migration | timer;
    const auto is = [&](ibv_qp_state one, ibv_qp_state other) { return from == one && to == other; };
    if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET)) {
        return {true, 0, 0};
    }
    if (is(IBV_QPS_RESET, IBV_QPS_INIT)) {
        return {true, init, 0};
    }
    if (is(IBV_QPS_INIT, IBV_QPS_INIT)) {
        return {true, 0, init};
    }
    if (is(IBV_QPS_INIT, IBV_QPS_RTR)) {
        if (is_ud) {
            return {true, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY};
        }
        return {true,
                IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0),
                IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX};
    }
    if (is(IBV_QPS_RTR, IBV_QPS_RTS)) {
        return {true,
                IBV_QP_SQ_PSN |
                    (is_rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0),
                running};
    }
    if (is(IBV_QPS_RTS, IBV_QPS_RTS) || is(IBV_QPS_SQD, IBV_QPS_RTS)) {
        return {true, 0, running};
    }
    if (is(IBV_QPS_RTS, IBV_QPS_SQD)) {
        return {true, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY};
    }
    if (is(IBV_QPS_SQE, IBV_QPS_RTS)) {
        return {true, 0, is_rc ? 0 : IBV_QP_CUR_STATE | rights};
    }
    return {};
}

/// Whether the kernel accepts the transition. Without IBV_QP_STATE the queue pair stays where it is.
inline bool kernel_accepts(ibv_qp_type type, ibv_qp_state from, ibv_qp_state wanted, int mask) {
    const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? wanted : from;
    if (to > IBV_QPS_ERR) {
        return false;
    }
    if ((mask & IBV_QP_CUR_STATE) != 0 && from != IBV_QPS_RTR && from != IBV_QPS_RTS && from != IBV_QPS_SQD &&
        from != IBV_QPS_SQE) {
        return false;
    }
    const KernelMove move = kernel_move(type, from, to);
    return move.valid && (mask & move.required) == move.required &&
           (mask & ~(move.required | move.optional | IBV_QP_STATE)) == 0;
}

/// A mask for a transition: what it requires, and of each optional attribute what `choose` makes of it. For a
/// transition that there is not, the mask of the way to the same state.
template <class Choose>
int kernel_mask(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, const Choose& choose) {
    KernelMove move = kernel_move(type, from, to);
    if (!move.valid && to != IBV_QPS_RESET && to < IBV_QPS_SQD) {
        move = kernel_move(type, static_cast<ibv_qp_state>(to - 1), to);
    }
    int mask = IBV_QP_STATE | move.required;
    for (int bit = 1; bit <= IBV_QP_RATE_LIMIT; bit <<= 1) {
        if ((move.optional & bit) != 0 && (bit & kNotServed) == 0) {
            mask |= choose(bit);
        }
    }
    return mask;
}

}  // namespace pollcore::test
