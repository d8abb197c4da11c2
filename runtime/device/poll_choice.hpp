// Chooses which verbs poll a CQ. If a worker's configuration leaves the choice open, measurements of the provider
// decide (D35).
//
// A CQ is made for one of the two ways, and is only polled that way: the verbs do not promise that both ways may be
// mixed on one CQ (D36). The device's time stamps can only be read from an extended CQ. So the queue pairs of sessions
// with time stamps use separate CQs (D37).
//
// Thread safety: constants and pure functions.
#pragma once

#include <string_view>

#include "pollcore/config.hpp"

namespace pollcore {

struct PollChoice {
    bool extended = false;  ///< true: by ibv_start_poll and ibv_next_poll; false: by ibv_poll_cq
    std::string_view why;   ///< for the log
};

/// Measured with libmlx5 44 on a software model of the HCA, without the doorbell's write-combining store. The numbers
/// are CPU cycles: medians of provider-bench on one CPU (Zen 5). In bursts of 32, a worker's operation takes 74 by
/// ibv_poll_cq, and 83 by ibv_start_poll in a thread domain, which needs no lock. In bursts of 16: 79 and 85. In bursts
/// of 4: 110 and 111. Singly: 205 and 208. To poll an empty CQ: 24 and 7.
inline constexpr PollChoice kPollOfMlx5{false,
                                        "a worker on libmlx5 takes 74 cycles an operation by ibv_poll_cq and 83 by "
                                        "ibv_start_poll, measured in bursts of 32 on a model of the NIC"};

/// Measured on the software device: a worker's step, including the device's work in it. The numbers are CPU cycles:
/// medians of tests/bench on one CPU (Zen 5), whose time stamp counter moves in steps of 26. In bursts of 32, an
/// operation takes 118 by ibv_poll_cq and 127 by ibv_start_poll. In bursts of 4: 150 and 162. Singly: 260 and 286. A
/// step that finds nothing: 40 and 47.
inline constexpr PollChoice kPollOfSoftware{
    false,
    "its worker takes 118 cycles an operation by ibv_poll_cq and 127 by ibv_start_poll, measured in bursts of 32"};

/// Not measured. By the source of rdma-core 44, both ways take the CQ's lock. ibv_poll_cq takes the lock once per
/// burst. With ibv_start_poll the lock is taken for every completion, because Soft-RoCE's ibv_next_poll cannot be used
/// (DeviceLimits::next_poll).
inline constexpr PollChoice kPollOfSoftRoce{false,
                                            "Soft-RoCE's library takes its lock once a burst by ibv_poll_cq and once a "
                                            "completion by ibv_start_poll, by its source"};

/// Other providers were not measured. The verbs promise ibv_poll_cq on every device. They allow a provider to leave out
/// the lock in ibv_start_poll, but do not promise this. And after ibv_start_poll each field is read by a call through a
/// pointer.
inline constexpr PollChoice kPollOfOthers{
    false, "the provider was not measured, and the verbs promise no gain by ibv_start_poll"};

/// Returns the choice for a CQ of a worker whose configuration says `poll`. `extended_cqs` is true if the device has
/// extended CQs. `by_table` is DeviceLimits::poll. `device_time` is true if the CQ's queue pairs need time stamps,
/// which the device then has.
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
