// The verbs that applications call on the data path. They are the entries of an ibv_context's ops.
//
// Thread safety: like the verbs, for any thread and any object. Errors are returned as the verbs return them.
#pragma once

#include <infiniband/verbs.h>

namespace pollcore {
class SoftDevice;
}

namespace pollcore::soft {

/// An ibv_context from which verbs that are not on the data path find their device.
struct SoftContext : ibv_context {
    SoftDevice* owner = nullptr;
};

/// The ops that the inline functions of <infiniband/verbs.h> call. Other inline verbs need an extended context. They
/// find none, and fail.
[[nodiscard]] ibv_context_ops verbs_ops() noexcept;

/// Sets those functions of the CQ that ibv_start_poll, ibv_next_poll, ibv_end_poll and the ibv_wc_read_* call.
void set_extended_ops(ibv_cq_ex& cq) noexcept;
/// Sets the function that ibv_wc_read_completion_ts calls, for a CQ that was made with time stamps.
void set_time_op(ibv_cq_ex& cq) noexcept;

}  // namespace pollcore::soft
