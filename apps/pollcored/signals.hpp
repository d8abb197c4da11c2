// The signals that the daemon answers. The main thread waits for these signals; they have no handlers.
//
// Thread safety: call block_signals() before any other thread exists, so that all threads inherit the signal mask. Only
// one thread may call wait_signal().
#pragma once

#include <chrono>
#include <optional>

namespace pollcore::daemon {

/// Blocks SIGTERM, SIGINT and SIGHUP, so that wait_signal() can take them. Ignores SIGPIPE, so that a write to a closed
/// pipe fails instead of killing the process. Throws Error.
void block_signals();

/// Returns the next SIGTERM, SIGINT or SIGHUP; nullopt if none came within `timeout`.
[[nodiscard]] std::optional<int> wait_signal(std::chrono::nanoseconds timeout) noexcept;

}  // namespace pollcore::daemon
