// The call stack of another thread of this process, which it writes down itself when a signal asks it to.
//
// A thread that the kernel does not let go of (state D), or that a debugger has stopped, does not answer: then the
// stack is not known.
//
// Thread safety: of() by one thread at a time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace pollcore::daemon {

class Backtrace {
public:
    /// Installs the handler of kBacktraceSignal, for the rest of the process's life, and lets the calling thread have
    /// that signal. Before other threads exist, which inherit that. Throws Error.
    Backtrace();

    /// A line for each frame, the innermost first: the file, what is exported there, and the offset, for addr2line(1).
    /// One line that says why not when the thread does not answer within `patience`.
    [[nodiscard]] std::vector<std::string> of(int thread_id, std::chrono::milliseconds patience);

private:
    bool written_late_ = false;  // a thread that was asked before has not written its own yet
};

}  // namespace pollcore::daemon
