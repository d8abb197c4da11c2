// By which verbs a CQ is polled: a table of what each provider was measured to take, for those whose configuration
// leaves it open.
//
// A CQ is made for one way and polled by no other, since nobody promises that both may be mixed on one. The device's
// time stamps can only be read of an extended CQ, so the queue pairs of sessions that want them have CQs of their own.
//
// Thread safety: values and functions of them.
#pragma once

#include <string_view>

#include "pollcore/config.hpp"

namespace pollcore {

struct PollChoice {
    bool extended = false;  ///< by ibv_start_poll and its kin, else by ibv_poll_cq
    std::string_view why;   ///< for the log
};

/// libmlx5 44 on a software model of the HCA, the doorbell's write-combining store not in it; cycles, medians of
/// provider-bench on one CPU (Zen 5). A worker's operation in bursts of 32: 74 by ibv_poll_cq, 83 by ibv_start_poll in
/// a thread domain without its lock. In bursts of 16 79 and 85, of 4 110 and 111, singly 205 and 208. A look at an
/// empty CQ: 24 and 7.
inline constexpr PollChoice kPollOfMlx5{false,
                                        "a worker on libmlx5 takes 74 cycles an operation by ibv_poll_cq and 83 by "
                                        "ibv_start_poll, measured in bursts of 32 on a model of the NIC"};

/// A worker's step on the software device, the device's part included; medians of tests/bench on one CPU (Zen 5),
/// cycles. An operation in bursts of 32: 118 by ibv_poll_cq, 127 by ibv_start_poll. In bursts of 4 150 and 162. Singly
/// 260 and 286, where the time stamp counter moves by 26 at once. A step that finds nothing: 40 and 47.
inline constexpr PollChoice kPollOfSoftware{
    false,
    "its worker takes 118 cycles an operation by ibv_poll_cq and 127 by ibv_start_poll, measured in bursts of 32"};

/// Read in rdma-core 44: both ways take the lock. ibv_start_poll does so for every completion, since its ibv_next_poll
/// is of no use (DeviceLimits::next_poll), ibv_poll_cq once for a burst.
inline constexpr PollChoice kPollOfSoftRoce{false,
                                            "Soft-RoCE's library takes its lock once a burst by ibv_poll_cq and once a "
                                            "completion by ibv_start_poll, by its source"};

/// Nobody has taken the figures of other providers. The verbs promise ibv_poll_cq on every device. They let a provider
/// leave out its lock in ibv_start_poll, and do not promise that it does; each field that is read is one more call
/// through a pointer.
inline constexpr PollChoice kPollOfOthers{
    false, "the provider was not measured, and the verbs promise no gain by ibv_start_poll"};

/// For a CQ of a worker with this `poll`, on a device that has extended CQs or not. `by_table` is DeviceLimits::poll.
/// With `device_time` the device has time stamps, and the CQ's queue pairs want them.
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
