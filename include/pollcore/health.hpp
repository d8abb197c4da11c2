// Tells whether the threads of a runtime make progress, for a watchdog or a program that embeds the runtime.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace pollcore {

/// A thread that has been busy with one thing for this long counts as hanging. It may be stuck in a call of a provider
/// or of the kernel, or it may have no core.
inline constexpr std::chrono::nanoseconds kHangsAfter = std::chrono::seconds(1);

/// The state of one thread.
struct ThreadHealth {
    enum class Kind : std::uint8_t {
        worker,
        control,  ///< carries out the calls of Context and its objects, one after the other
        serve,    ///< lets other processes attach
    };
    enum class State : std::uint8_t {
        working,
        waiting,      ///< has nothing to do
        asleep,       ///< a worker that has nothing to do and sleeps
        hangs,        ///< busy with one thing for kHangsAfter or longer
        not_running,  ///< not started, or stopped
    };

    std::string name;  ///< a worker's name from the configuration; the kernel's name of any other thread
    Kind kind = Kind::worker;
    State state = State::not_running;
    int thread_id = 0;                 ///< the kernel's number of the thread, for /proc/self/task
    std::chrono::nanoseconds busy{0};  ///< how long the thread has been busy with the same thing; 0 while it waits
    std::uint64_t turns = 0;           ///< number of a worker's looks for work, or of another thread's jobs or rounds
};

/// The state of a runtime's threads at one moment.
struct Health {
    std::vector<ThreadHealth> threads;
};

}  // namespace pollcore
