// A LogWriter has a thread that writes the log lines. So a thread that logs never waits for a reader.
//
// write(2) waits if nobody reads the pipe, if the terminal is stopped, or if the journal hangs. Without a LogWriter,
// the thread that logs waits in write(2). With a LogWriter, lines wait in a bounded queue. A line that does not fit
// into the queue is lost and counted.
//
// Thread safety: any thread may call all functions.
// Invariants
//   - Lines are written in the order in which they were logged.
//   - Each line is written, or counted by log_lines_lost(). A line in the log says how many lines are missing there.
//   - The output's O_NONBLOCK flag stays as it is, because other processes may write to the same open file.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace pollcore {

namespace log_detail {
class LogQueue;
}

/// While a LogWriter exists, one thread writes all lines of this process. Several LogWriters share this thread. A
/// forked child does not inherit the thread. Until the child makes a LogWriter, each of its threads writes its own
/// lines.
class LogWriter {
public:
    /// Limits of the queue of lines that wait to be written.
    static constexpr std::size_t kLinesMax = 1024;
    static constexpr std::size_t kBytesMax = std::size_t{1} << 20;
    /// The destructor of the last LogWriter, exit(3), set_log_output() and a failed check wait at most this long for a
    /// reader of the output.
    static constexpr std::chrono::milliseconds kPatience{1000};

    /// `settle` gives the thread its name and its CPUs. It runs on the thread before anything else, and must not throw.
    /// It is not called if another LogWriter has started the thread already. Throws std::system_error if no thread or
    /// descriptor is available.
    explicit LogWriter(std::function<void()> settle = [] {});
    /// The last LogWriter waits until the waiting lines are written, for kPatience at most. The remaining lines are
    /// lost.
    ~LogWriter();
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

private:
    log_detail::LogQueue& queue_;
};

/// Waits until the lines logged so far are written or lost. Returns false if `within` has passed and some lines still
/// wait. Call this before abort(3) or _exit(2), which lose all waiting lines.
bool flush_log(std::chrono::milliseconds within) noexcept;

namespace log_detail {

/// Passes `line` to the LogWriter's thread. Returns false if there is no LogWriter; then the caller writes the line.
[[nodiscard]] bool hand_over(std::string& line);

/// Tells the LogWriter's thread that the log's descriptor has changed.
void output_changed() noexcept;

}  // namespace log_detail
}  // namespace pollcore
