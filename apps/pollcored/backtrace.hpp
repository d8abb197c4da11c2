// The call stack of another thread of this process. A signal makes that thread write its own stack down.
//
// A thread that is stuck in the kernel (state D), or that a debugger has stopped, does not take the signal. Its stack
// stays unknown.
//
// Thread safety: of() by one thread at a time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace pollcore::daemon {

class Backtrace {
public:
    /// Installs the handler of kBacktraceSignal for the rest of the process's life, and unblocks the signal in the
    /// calling thread. Construct it before the threads exist that of() is to ask: they inherit the signal mask. Throws
    /// Error.
    Backtrace();

    /// Returns a line for each frame, the innermost first: the file, the exported symbol, and the offset, for
    /// addr2line(1). If the thread does not answer within `patience`, returns one line with the reason instead.
    [[nodiscard]] std::vector<std::string> of(int thread_id, std::chrono::milliseconds patience);

private:
    bool written_late_ = false;  // an earlier call gave up while the asked thread was still writing
};

}  // namespace pollcore::daemon
