// The signals that the daemon answers. The main thread takes them from its inbox (main_inbox.hpp); they have no
// handlers.
//
// Thread safety: call block_signals() before any other thread exists, so that all threads inherit the signal mask.
#pragma once

#include <signal.h>

namespace pollcore::daemon {

/// Blocks SIGTERM, SIGINT and SIGHUP, so that MainInbox can take them. Ignores SIGPIPE, so that a write to a closed
/// pipe fails instead of killing the process. Throws Error.
void block_signals();

/// SIGTERM, SIGINT and SIGHUP.
[[nodiscard]] sigset_t our_signals() noexcept;

}  // namespace pollcore::daemon
