// The signal by which a program asks one of its threads where it is.
#pragma once

#include <signal.h>

namespace pollcore {

/// Not blocked in the library's own threads. A program that wants backtraces of them installs a handler with SA_RESTART, and sends it
/// to a thread by tgkill(2). Without a handler it does nothing: its default is to be ignored.
inline constexpr int kBacktraceSignal = SIGURG;

}  // namespace pollcore
