// Whether the threads of a runtime move: what a watchdog, or a program that embeds the runtime, needs to know.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace pollcore {

/// A thread that has been busy with one thing for so long hangs: inside a call of a provider or of the kernel, or
/// without a core.
inline constexpr std::chrono::nanoseconds kHangsAfter = std::chrono::seconds(1);

struct ThreadHealth {
    enum class Kind : std::uint8_t {
        worker,
        control,  ///< carries out what is asked of the runtime, one call after the other
        serve,    ///< lets processes attach
    };
    enum class State : std::uint8_t {
        working,
        waiting,      ///< has nothing to do
        asleep,       ///< waiting, of a worker
        hangs,        ///< working, for kHangsAfter or longer
        not_running,  ///< not started, or stopped
    };

    std::string name;  ///< a worker's as configured, another's as the kernel has it
    Kind kind = Kind::worker;
    State state = State::not_running;
    int thread_id = 0;                 ///< the kernel's, for /proc/self/task
    std::chrono::nanoseconds busy{0};  ///< how long it has been at the same thing; 0 while it waits
    std::uint64_t turns = 0;           ///< a worker's looks for work; jobs, or rounds of its loop, of another
};

struct Health {
    std::vector<ThreadHealth> threads;
};

}  // namespace pollcore
