// The loop of a worker's thread.
#pragma once

#include <atomic>

#include "pollcore/config.hpp"
#include "worker/worker.hpp"

namespace pollcore {

/// Turns the worker on this thread until `stop` is true, and waits as `policy` says where there is nothing to do.
void run_worker(Worker& worker, const std::atomic<bool>& stop, IdlePolicy policy) noexcept;

}  // namespace pollcore
