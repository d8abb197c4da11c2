// Which verbs poll a CQ: a table of measurements by provider, for workers whose configuration leaves it open (D35).
//
// A CQ is made for one way and polled by no other, since nobody promises that both may be mixed on one CQ (D36). The
// device's time stamps can only be read from an extended CQ, so the queue pairs of sessions that want them have CQs of
// their own (D37).
//
// Thread safety: constants and pure functions.
#pragma once

#include <string_view>

#include "pollcore/config.hpp"

namespace pollcore {

struct PollChoice {
    bool extended = false;  ///< true: by ibv_start_poll and its kin; false: by ibv_poll_cq
    std::string_view why;   ///< for the log
};

/// libmlx5 44 on a software model of the HCA, without the doorbell's write-combining store. Cycles; medians of
/// provider-bench on one CPU (Zen 5). A worker's operation in bursts of 32: 74 by ibv_poll_cq, 83 by ibv_start_poll in
/// a thread domain without its lock. In bursts of 16: 79 and 85; of 4: 110 and 111; singly: 205 and 208. A look at an
/// empty CQ: 24 and 7.
inline constexpr PollChoice kPollOfMlx5{false,
                                        "a worker on libmlx5 takes 74 cycles an operation by ibv_poll_cq and 83 by "
                                        "ibv_start_poll, measured in bursts of 32 on a model of the NIC"};

/// A worker's step on the software device, with the device's part. Cycles; medians of tests/bench on one CPU (Zen 5).
/// An operation in bursts of 32: 118 by ibv_poll_cq, 127 by ibv_start_poll. In bursts of 4: 150 and 162. Singly: 260
/// and 286; the time stamp counter moves in steps of 26. A step that finds nothing: 40 and 47.
inline constexpr PollChoice kPollOfSoftware{
    false,
    "its worker takes 118 cycles an operation by ibv_poll_cq and 127 by ibv_start_poll, measured in bursts of 32"};

/// From the source of rdma-core 44: both ways take the lock. ibv_poll_cq takes it once for a burst. ibv_start_poll
/// takes it for every completion, since Soft-RoCE's ibv_next_poll is of no use (DeviceLimits::next_poll).
inline constexpr PollChoice kPollOfSoftRoce{false,
                                            "Soft-RoCE's library takes its lock once a burst by ibv_poll_cq and once a "
                                            "completion by ibv_start_poll, by its source"};

/// Other providers were not measured. The verbs promise ibv_poll_cq on every device. They let a provider leave out its
/// lock in ibv_start_poll, but do not promise that it does, and each field is read by one more call through a pointer.
inline constexpr PollChoice kPollOfOthers{
    false, "the provider was not measured, and the verbs promise no gain by ibv_start_poll"};

/// The choice for a CQ of a worker with this `poll`. `extended_cqs`: the device has them. `by_table` is
/// DeviceLimits::poll. `device_time`: the device has time stamps, and the CQ's queue pairs want them.
[[nodiscard]] constexpr PollChoice choose_poll(PollVerbs poll, bool extended_cqs, const PollChoice& by_table,
                                               bool device_time) noexcept {
    if (device_time) {
        return {true, "only so can time stamps be read"};
    }
    switch (poll) {
        case PollVerbs::extended: return {true, "poll = \"extended\""};
        case PollVerbs::plain: return {false, "poll = \"plain\""};
        case PollVerbs::automatic: break;
    }
    if (!extended_cqs) {
        return {false, "the device has no extended completion queues"};
    }
    return by_table;
}

}  // namespace pollcore
