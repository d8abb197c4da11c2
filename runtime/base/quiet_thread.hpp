// Starts a thread of the library in a program that may have its own signal handlers.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <cstddef>
#include <thread>
#include <utility>

#include "base/backtrace_signal.hpp"

namespace pollcore {

/// Starts a thread that gets no signals, because signals are for the program's own threads. If the program wants
/// backtraces, the thread gets kBacktraceSignal. Throws std::system_error.
template <class F>
[[nodiscard]] std::thread start_quiet_thread(F&& body) {
    struct Masked {
        sigset_t before;
        Masked() noexcept {
            sigset_t all;
            sigfillset(&all);
            if (wants_backtraces.load(std::memory_order_relaxed)) {
                sigdelset(&all, kBacktraceSignal);
            }
            pthread_sigmask(SIG_SETMASK, &all, &before);
        }
        ~Masked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    };
    const Masked masked;  // a new thread inherits the signal mask
    return std::thread(std::forward<F>(body));
}

/// Lets the calling thread run on any CPU. A thread inherits the CPU affinity of the thread that starts it, and a
/// program may have pinned that thread to one CPU.
inline void run_anywhere() noexcept {
    cpu_set_t anywhere;
    CPU_ZERO(&anywhere);
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        CPU_SET(cpu, &anywhere);
    }
    (void)::sched_setaffinity(0, sizeof(anywhere), &anywhere);
}

}  // namespace pollcore
