// The signals that the daemon answers, taken by its main thread instead of by handlers.
//
// Thread safety: call block_signals() before any other thread exists, so that all inherit the mask. wait_signal() is
// for one thread.
#pragma once

#include <chrono>
#include <optional>

namespace pollcore::daemon {

/// Keeps SIGTERM, SIGINT and SIGHUP for wait_signal. Makes writes to a closed pipe fail instead of killing the process.
/// Throws Error.
void block_signals();

/// The next of these signals; nothing when none came within the time.
[[nodiscard]] std::optional<int> wait_signal(std::chrono::nanoseconds timeout) noexcept;

}  // namespace pollcore::daemon
