// Polls move the NIC.
#pragma once

#include <cstdint>

namespace mlx5_model {

/// From now on polls of this CQ, an ibv_cq by its address, move the NIC first where that is its pace. libmlx5 has
/// filled in its functions before it asks the kernel for the CQ. ibv_poll_cq is the context's, so it is hooked with the
/// first CQ alone: a test may have put a hook of its own before it since. Returns whether it was hooked: not where the
/// pace is by hand.
bool hook_polls(std::uint64_t cq, bool first_of_context);

}  // namespace mlx5_model
