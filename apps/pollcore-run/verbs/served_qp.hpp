// Inline verbs about queue pairs and shared receive queues.
//
// Thread safety: any thread.
#pragma once

#include "plain_verbs.hpp"

namespace pollcore::served {

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init) noexcept;
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init) noexcept;

}  // namespace pollcore::served
