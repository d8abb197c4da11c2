// A LogWriter has a thread that writes the log lines. So a thread that logs never waits for a reader.
//
// write(2) waits if nobody reads the pipe, if the terminal is stopped, or if the journal hangs. Without a LogWriter,
// the thread that logs waits in write(2). With a LogWriter, lines wait in a bounded queue. A line that does not fit
// into the queue is lost and counted.
//
// While a function of the program takes the lines (set_log_function), this thread calls it. The function keeps the
// thread, as a LogWriter does.
//
// Thread safety: any thread may call all functions.
// Invariants
//   - Lines are written in the order in which they were logged.
//   - Each line is written once, or counted by log_lines_lost(). A line in the log says how many lines are missing
//     there.
//   - The output's O_NONBLOCK flag stays as it is, because other processes may write to the same open file.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include "pollcore/logging.hpp"

namespace pollcore {

namespace log_detail {
class LogQueue;
struct Line;
}  // namespace log_detail

/// While a LogWriter exists, one thread writes all lines of this process. Several LogWriters share this thread. A
/// forked child does not inherit the thread. Until the child makes a LogWriter, each of its threads writes its own
/// lines.
class LogWriter {
public:
    /// Bytes of the lines that wait to be written. Their number is at most kLogLinesMax.
    static constexpr std::size_t kBytesMax = std::size_t{1} << 20;
    /// The destructor of the last LogWriter, exit(3), set_log_output() and a failed check wait at most this long for a
    /// reader of the output.
    static constexpr std::chrono::milliseconds kPatience{1000};

    /// `settle` gives the thread its CPUs, and must not throw. The thread calls it before it writes the next line, but
    /// only the first one that it gets. Without one, the thread may run on any CPU. Throws std::system_error if no
    /// thread or descriptor is available.
    explicit LogWriter(std::function<void()> settle = {});
    /// The last LogWriter waits until the waiting lines are written, for kPatience at most. The remaining lines are
    /// lost.
    ~LogWriter();
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

private:
    log_detail::LogQueue& queue_;
};

namespace log_detail {

/// Passes `line` to the LogWriter's thread. Returns false if there is no LogWriter; then the caller writes the line.
[[nodiscard]] bool hand_over(Line& line);

/// Tells the LogWriter's thread that the log's descriptor has changed.
void output_changed() noexcept;

}  // namespace log_detail
}  // namespace pollcore
