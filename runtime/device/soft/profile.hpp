// Habits of real providers: what they do where the verbs leave it open, or do not expect it.
//
// Without such habits the software device keeps to the specification. A profile shows code the habits of hardware that
// is not here. It is constant after the device was opened.
#pragma once

#include <cstdint>

namespace pollcore {

struct SoftProfile {
    /// A receive that is posted in ERR is never flushed.
    bool keeps_late_receives = false;
    /// IBV_EVENT_CQ_ERR for each completion that finds its CQ full; the CQ and its QPs go on. Else the CQ is dead and
    /// its QPs are in error.
    bool overrun_cq_lives = false;
    /// RESET and destroy of a QP take its completions out of its CQs. Else they stay there.
    bool purges_cqes = false;
    /// A message of up to kPayloadInCqe bytes waits in the CQE. When the CQ is polled, the CPU copies it to the address
    /// that the receive's SGE names (H8).
    bool copies_at_poll = false;
    /// A poll that fails in the middle of a batch has taken the completions before it, and does not say how many.
    bool failed_poll_loses_batch = false;
    /// The next QP gets the number of one that was destroyed.
    bool reuses_qp_numbers = false;
    /// ibv_query_qp_data_in_order(3) promises nothing.
    bool promises_no_order = false;
    /// Completions have no time stamps.
    bool has_no_clock = false;

    static constexpr std::uint32_t kPayloadInCqe = 32;

    bool operator==(const SoftProfile&) const = default;
};

/// Like the kernel's Soft-RoCE (Linux 6.1), as measured.
inline constexpr SoftProfile kRxeLike{
    .keeps_late_receives = true, .overrun_cq_lives = true, .promises_no_order = true, .has_no_clock = true};

/// Like rdma-core's provider for ConnectX, as read in its source.
inline constexpr SoftProfile kMlx5Like{
    .purges_cqes = true, .copies_at_poll = true, .failed_poll_loses_batch = true, .reuses_qp_numbers = true};

}  // namespace pollcore
