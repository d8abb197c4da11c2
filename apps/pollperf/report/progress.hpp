// Tells a person at a terminal how far a measurement is.
//
// Thread safety: one thread uses an object. It writes only in step(), so a measurement is not disturbed by it.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <string>

namespace pollcore::perf {

/// One line on the terminal, which each step rewrites, and which the destructor erases. Writes nothing if the
/// descriptor is no terminal, and nothing in the first second, so that a short measurement shows no line.
class Progress {
public:
    /// `steps` is how often step() will be called. If the whole is known to last longer than a second, `expected` says
    /// so, and the line appears at once.
    explicit Progress(std::size_t steps, std::chrono::nanoseconds expected = {}, int descriptor = STDERR_FILENO);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// The next step begins. `what` says what it measures: "send, 2 bytes, direct: round 3 of 10".
    void step(std::string what);

private:
    using Clock = std::chrono::steady_clock;

    void print(const std::string& line);

    const std::size_t steps_;
    const std::chrono::nanoseconds expected_;
    const int descriptor_;
    const bool terminal_;
    const Clock::time_point began_;
    Clock::time_point printed_at_{};
    std::size_t begun_ = 0;  ///< steps
    bool shown_ = false;
};

}  // namespace pollcore::perf
