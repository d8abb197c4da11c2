// Which changes of a queue pair the kernel lets through: its ib_modify_qp_is_ok().
#pragma once

#include <infiniband/verbs.h>

namespace mlx5_model {

/// Whether a queue pair of `type` may go from one state to the other (which may be one) with the attributes of `mask`.
/// IBV_QP_STATE in it is not looked at.
[[nodiscard]] bool may_modify(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

}  // namespace mlx5_model
