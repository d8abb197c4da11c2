// Log lines are written by a thread of their own, so that a thread that logs never waits for a reader.
//
// A pipe that nobody reads, a stopped terminal or a journal that hangs makes write(2) wait. Without a LogWriter, a
// thread that logs waits there. With one, lines wait in a bounded queue. A line that does not fit is lost and counted.
//
// Thread safety: all functions, from any thread.
// Invariants
//   - Lines are written in the order in which they were logged.
//   - Each line is written or counted by log_lines_lost(). A line in the log says how many are missing at that place.
//   - The output's O_NONBLOCK is left alone: other processes write to the same open file.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace pollcore {

namespace log_detail {
class LogQueue;
}

/// While one lives, a thread writes the lines of this process. Several share that thread. A forked child has no such
/// thread and writes its lines itself.
class LogWriter {
public:
    /// The most that waits to be written.
    static constexpr std::size_t kLinesMax = 1024;
    static constexpr std::size_t kBytesMax = std::size_t{1} << 20;
    /// How long the end of the process's last LogWriter, exit(3) and set_log_output() wait for a reader.
    static constexpr std::chrono::milliseconds kPatience{1000};

    /// `settle` runs on the thread before anything else and must not throw: it names and places the thread. It is not
    /// called when another LogWriter has started the thread. Throws std::system_error when no thread or descriptor is
    /// to be had.
    explicit LogWriter(std::function<void()> settle = [] {});
    /// The last one writes the lines that wait, for kPatience at most. Lines that are left then are lost.
    ~LogWriter();
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

private:
    log_detail::LogQueue& queue_;
};

/// Waits until the lines logged so far are written or lost. False: `within` has passed before. Call it before abort(3)
/// or _exit(2), which lose the lines that wait.
bool flush_log(std::chrono::milliseconds within) noexcept;

namespace log_detail {

/// Takes `line` for the thread. False: no LogWriter lives, so the caller writes it.
[[nodiscard]] bool hand_over(std::string& line);

/// Makes the thread look again at which descriptor the output is.
void output_changed() noexcept;

}  // namespace log_detail
}  // namespace pollcore
