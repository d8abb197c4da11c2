// The troubles that a history can have, and the plan of its troubles.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/random.hpp"

namespace pollcore::sim {

enum class Trouble : std::uint8_t {
    // Troubles of the network
    delay,      ///< packets come late
    loss,       ///< a few packets are lost; the sender repeats them
    outage,     ///< no packet arrives for longer than the sender repeats packets
    port_flap,  ///< the port goes down, and comes up again
    // Troubles of the provider
    send_status,  ///< a request completes with a status from the plan
    receive_status,
    refuse_send,     ///< ibv_post_send fails
    refuse_receive,  ///< ibv_post_recv fails
    overrun,         ///< a completion finds its CQ full
    fail_poll,       ///< ibv_poll_cq fails
    fail_modify,     ///< ibv_modify_qp fails
    fail_destroy,    ///< ibv_destroy_qp fails
    fail_create,     ///< ibv_create_qp, _cq, ibv_alloc_pd or ibv_reg_mr fails
    fail_arm,        ///< ibv_req_notify_cq fails
    device_fatal,
    device_removed,
    // Troubles that the program causes
    local_key,   ///< a request with an lkey that names no memory region
    remote_key,  ///< a request with an rkey that gives no access, or none any more
    too_long,    ///< a message longer than the peer's receives
    reset,       ///< a queue pair is reset, and connected again
    end_way,     ///< an address handle is destroyed, and another made
    end_shared,  ///< a shared receive queue is closed, with its queue pairs
    arm_limit,   ///< the limit of a shared receive queue is armed
    disconnect,  ///< the program moves a queue pair to the error state
    close_qp,
    close_session,
    stop_runtime,
    stop_polling,  ///< an application takes no completions for a time
};
inline constexpr std::size_t kTroubles = 28;

[[nodiscard]] std::string_view trouble_name(Trouble trouble) noexcept;

/// The state of a queue pair when a trouble meets it.
enum class Doing : std::uint8_t { unconnected, idle, busy, failed, ending };
inline constexpr std::size_t kDoings = 5;
[[nodiscard]] std::string_view doing_name(Doing doing) noexcept;

/// Whether this trouble can meet a queue pair in this state.
[[nodiscard]] bool can_meet(Trouble trouble, Doing doing) noexcept;

/// How often each trouble met a queue pair in each state.
using Coverage = std::array<std::array<std::uint64_t, kDoings>, kTroubles>;

struct Planned {
    Trouble trouble{};
    std::uint64_t step = 0;    ///< the step at which the trouble begins
    std::uint32_t where = 0;   ///< index of a channel, application or runtime, modulo their number
    std::uint64_t chance = 0;  ///< seed for everything else
};

/// Draws up to `most` troubles in the first `steps` steps, from `among` (empty: all).
[[nodiscard]] std::vector<Planned> draw_plan(Random& random, std::uint32_t most, std::uint64_t steps,
                                             const std::vector<Trouble>& among);

}  // namespace pollcore::sim
