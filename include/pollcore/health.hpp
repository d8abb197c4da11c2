// Whether the threads of a runtime make progress, for a watchdog or a program that embeds the runtime.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace pollcore {

/// A thread that has been busy with one thing for this long hangs: in a call of a provider or of the kernel, or without
/// a core.
inline constexpr std::chrono::nanoseconds kHangsAfter = std::chrono::seconds(1);

/// The state of one thread.
struct ThreadHealth {
    enum class Kind : std::uint8_t {
        worker,
        control,  ///< carries out what is asked of the runtime, one call after the other
        serve,    ///< lets processes attach
    };
    enum class State : std::uint8_t {
        working,
        waiting,      ///< has nothing to do
        asleep,       ///< a worker that has nothing to do and sleeps
        hangs,        ///< busy with one thing for kHangsAfter or longer
        not_running,  ///< not started, or stopped
    };

    std::string name;  ///< a worker: as configured; other threads: the kernel's name
    Kind kind = Kind::worker;
    State state = State::not_running;
    int thread_id = 0;                 ///< the kernel's number, for /proc/self/task
    std::chrono::nanoseconds busy{0};  ///< how long it has been at the same thing; 0 while it waits
    std::uint64_t turns = 0;           ///< a worker: looks for work; other threads: jobs, or rounds of the loop
};

/// Whether the threads of a runtime move, at one moment.
struct Health {
    std::vector<ThreadHealth> threads;
};

}  // namespace pollcore
