// What rdma_cm does later.
#pragma once

#include <chrono>
#include <functional>

namespace mlx5_model {

/// Called by a thread of its own, which is begun when it is first needed.
void later(std::chrono::milliseconds delay, std::function<void()> action);

}  // namespace mlx5_model
