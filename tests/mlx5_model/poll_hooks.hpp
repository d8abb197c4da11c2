// Makes polls of CQs move the NIC.
#pragma once

#include <cstdint>

namespace mlx5_model {

/// From now on polls of the ibv_cq at address `cq` move the NIC first, while the pace is by_polls. libmlx5 fills in a
/// CQ's functions before it asks the kernel for the CQ. poll_cq is a function of the context, so only the context's
/// first CQ hooks it: a test may since have put its own hook in front. Returns whether the CQ was hooked: false if the
/// pace is by_hand.
bool hook_polls(std::uint64_t cq, bool first_of_context);

}  // namespace mlx5_model
