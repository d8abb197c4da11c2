// The call stack of another thread of this process, which it writes down itself when a signal asks it to.
//
// A thread that is stuck in the kernel (state D), or that a debugger has stopped, does not answer. Its stack is not
// known then.
//
// Thread safety: of() by one thread at a time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace pollcore::daemon {

class Backtrace {
public:
    /// Installs the handler of kBacktraceSignal, for the rest of the process's life, and unblocks that signal
    /// for the calling thread. Construct before other threads exist: they inherit the mask. Throws Error.
    Backtrace();

    /// A line for each frame, the innermost first: the file, the exported symbol, and the offset, for addr2line(1). If
    /// the thread does not answer within `patience`, one line says why there is no stack.
    [[nodiscard]] std::vector<std::string> of(int thread_id, std::chrono::milliseconds patience);

private:
    bool written_late_ = false;  // a thread that was asked before has not yet written its stack
};

}  // namespace pollcore::daemon
