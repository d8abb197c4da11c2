// Makes polls of CQs run the NIC.
#pragma once

#include <cstdint>

namespace mlx5_model {

/// From now on, while the pace is Pace::by_polls, each poll of the ibv_cq at address `cq` first runs the NIC. Replaces
/// the CQ's start_poll, which libmlx5 fills in before it asks the kernel for the CQ. poll_cq is a function of the
/// context. It is replaced only once for each context, because a test may later put its own hook in front. Returns
/// false, and hooks nothing, if the pace is by_hand.
bool hook_polls(std::uint64_t cq, bool first_of_context);

}  // namespace mlx5_model
