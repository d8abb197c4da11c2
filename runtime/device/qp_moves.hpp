// The moves of a queue pair from state to state: which the verbs have, and which attributes each needs and takes (IBTA
// table "QP state transition properties", ibv_modify_qp(3)).
//
// Thread safety: pure.
#pragma once

#include <string>
#include <string_view>

#include <infiniband/verbs.h>

namespace pollcore {

/// Returns why a queue pair of this type cannot go from `from` to `to` with the attributes of `mask`. Returns an empty
/// text if it can. A change of attributes without IBV_QP_STATE is a move from a state to the same state.
[[nodiscard]] std::string why_no_move(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

/// "RESET", "INIT" and so on.
[[nodiscard]] std::string_view name_of(ibv_qp_state state) noexcept;

}  // namespace pollcore
