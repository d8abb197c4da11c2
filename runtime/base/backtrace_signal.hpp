// The signal that a program sends to one of the library's threads to get a backtrace of that thread.
#pragma once

#include <signal.h>

#include <atomic>

namespace pollcore {

/// A program that wants backtraces of the library's own threads installs a handler with SA_RESTART for this signal. It
/// sets wants_backtraces before the library starts its threads, so that they do not block the signal. It sends the
/// signal to a thread by tgkill(2).
inline constexpr int kBacktraceSignal = SIGURG;
inline std::atomic<bool> wants_backtraces{false};

}  // namespace pollcore
