// Actions that rdma_cm takes after a delay.
#pragma once

#include <chrono>
#include <functional>

namespace mlx5_model {

/// Runs `action` after `delay`, in a separate thread that the first call starts.
void later(std::chrono::milliseconds delay, std::function<void()> action);

}  // namespace mlx5_model
