// Habits of real providers: their behaviour where the verbs leave it open, or do not expect it.
//
// If all flags are false, the software device keeps to the specification. With a profile, code can be tested against
// the habits of hardware that is not present. The profile does not change after the device was opened.
#pragma once

#include <cstdint>

namespace pollcore {

struct SoftProfile {
    /// If true, a receive that is posted in state ERR is never flushed.
    bool keeps_late_receives = false;
    /// If true, each completion that finds its CQ full raises IBV_EVENT_CQ_ERR, and the CQ and its QPs go on. If false,
    /// the CQ is then dead, and its QPs are in error.
    bool overrun_cq_lives = false;
    /// If true, RESET and destroy of a QP remove the QP's completions from its CQs. If false, the completions stay.
    bool purges_cqes = false;
    /// If true, a message of up to kPayloadInCqe bytes waits in the CQE. When the CQ is polled, the CPU copies the
    /// message to the address that the receive's SGE contains (H8).
    bool copies_at_poll = false;
    /// If true, a poll that fails in the middle of a batch removes the completions before the failure from the CQ, and
    /// does not return how many there were.
    bool failed_poll_loses_batch = false;
    /// If true, a new QP may get the number of the QP that was destroyed last.
    bool reuses_qp_numbers = false;
    /// If true, ibv_query_qp_data_in_order(3) promises nothing.
    bool promises_no_order = false;
    /// If true, completions have no time stamps.
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
