// Finds the threads that hang, and decides whether the watchdog may be fed.
//
// A worker that hangs serves no session, so its time limit is short. The other threads are not on the data path: while
// one of them hangs, connections go on, and a restart would end the connections. Their limit is longer.
//
// Thread safety: one thread. Nothing here reads a clock or writes a log.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pollcore/health.hpp"

namespace pollcore::daemon {

class HangCheck {
public:
    using Nanoseconds = std::chrono::nanoseconds;

    /// How long a thread may be busy with one thing before the watchdog is no longer fed.
    struct Limits {
        Nanoseconds worker{0};
        Nanoseconds other{0};  ///< for threads that are not workers
    };
    explicit HangCheck(const Limits& limits) : limits_(limits) {}

    struct Findings {
        std::vector<ThreadHealth> begun;     ///< threads that began to hang since the last check
        std::vector<ThreadHealth> starving;  ///< threads that reached their limit since the last check
        /// Threads that no longer hang. `busy` is the length of the hang at the last check that saw it.
        std::vector<ThreadHealth> over;
        bool feed = true;  ///< no thread has reached its limit
    };
    [[nodiscard]] Findings check(const Health& health);

private:
    struct Hang {
        Nanoseconds busy{0};   // length of the hang at the last check
        bool starves = false;  // the thread has reached its limit
    };

    [[nodiscard]] Nanoseconds limit(const ThreadHealth& thread) const noexcept;

    const Limits limits_;
    // By kind and name, because a worker may have the name of another thread.
    std::map<std::pair<ThreadHealth::Kind, std::string>, Hang> hangs_;
};

}  // namespace pollcore::daemon
