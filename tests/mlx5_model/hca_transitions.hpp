// The state changes of a queue pair that the kernel's ib_modify_qp_is_ok() permits.
#pragma once

#include <infiniband/verbs.h>

namespace mlx5_model {

/// Whether a queue pair of `type` may go from state `from` to state `to` (which may be equal) with the attributes of
/// `mask`. IBV_QP_STATE in `mask` is ignored.
[[nodiscard]] bool may_modify(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

}  // namespace mlx5_model
