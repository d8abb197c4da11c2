// Which threads hang, since when, and whether the watchdog deserves to be fed.
//
// A worker that hangs serves nobody on its core, so it starves the watchdog soon. The other threads are not on the data
// path: while one of them hangs, connections go on, and a restart would end them. These threads have a longer limit.
//
// Thread safety: one thread. Nothing here reads a clock, or writes a log.
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

    /// How long a thread may be at one thing before the watchdog is starved.
    struct Limits {
        Nanoseconds worker{0};
        Nanoseconds other{0};
    };
    explicit HangCheck(const Limits& limits) : limits_(limits) {}

    struct Findings {
        std::vector<ThreadHealth> begun;     ///< threads that began to hang since the last check
        std::vector<ThreadHealth> starving;  ///< threads that reached their limit since the last check
        std::vector<ThreadHealth> over;      ///< threads that go on; `busy` is the length of the hang at the last check
        bool feed = true;                    ///< no thread is at its limit
    };
    [[nodiscard]] Findings check(const Health& health);

private:
    struct Hang {
        Nanoseconds busy{0};  // at the last check
        bool starves = false;
    };

    [[nodiscard]] Nanoseconds limit(const ThreadHealth& thread) const noexcept;

    const Limits limits_;
    std::map<std::pair<ThreadHealth::Kind, std::string>, Hang> hangs_;  // a worker may be named like another thread
};

}  // namespace pollcore::daemon
