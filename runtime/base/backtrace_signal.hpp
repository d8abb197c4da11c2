// The signal by which a program asks one of its threads where it is.
#pragma once

#include <signal.h>

#include <atomic>

namespace pollcore {

/// A program that wants backtraces of the library's own threads installs a handler with SA_RESTART, and sets
/// wants_backtraces before these threads begin, so that they do not block the signal. It sends the signal to a thread
/// by tgkill(2).
inline constexpr int kBacktraceSignal = SIGURG;
inline std::atomic<bool> wants_backtraces{false};

}  // namespace pollcore
