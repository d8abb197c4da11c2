// The verbs that applications call on the data path, as the entries of an ibv_context's ops.
//
// Thread safety: like the verbs: any thread, any object. Errors are returned as the verbs return them.
#pragma once

#include <infiniband/verbs.h>

namespace pollcore {
class SoftDevice;
}

namespace pollcore::soft {

/// Verbs that are not on the data path find their device by this.
struct SoftContext : ibv_context {
    SoftDevice* owner = nullptr;
};

/// All entries that the inline verbs reach. A verb that the device does not have returns EOPNOTSUPP.
[[nodiscard]] ibv_context_ops verbs_ops() noexcept;

/// Fills in the functions that ibv_start_poll and its kin call through the CQ itself.
void set_extended_ops(ibv_cq_ex& cq) noexcept;
/// Fills in ibv_wc_read_completion_ts, for a CQ that was made with time stamps.
void set_time_op(ibv_cq_ex& cq) noexcept;

}  // namespace pollcore::soft
