// The verbs that applications call on the data path, as the entries of an ibv_context's ops.
//
// Thread safety: as the verbs are: any thread, any object. Errors are returned as the verbs do.
#pragma once

#include <infiniband/verbs.h>

namespace pollcore {
class SoftDevice;
}

namespace pollcore::soft {

/// What the verbs that are not of the data path find their device by.
struct SoftContext : ibv_context {
    SoftDevice* owner = nullptr;
};

/// All entries that the inline verbs reach; what the device does not have answers EOPNOTSUPP.
[[nodiscard]] ibv_context_ops verbs_ops() noexcept;

/// Fills in what ibv_start_poll and its kin reach through the CQ itself.
void set_extended_ops(ibv_cq_ex& cq) noexcept;
/// ibv_wc_read_completion_ts, of a CQ that was made for it.
void set_time_op(ibv_cq_ex& cq) noexcept;

}  // namespace pollcore::soft
