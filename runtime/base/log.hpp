// Logs lines with levels: to stderr, for an operator or the journal to read, or to a function of the program
// (pollcore/logging.hpp).
//
// Thread safety: any thread may call all functions. A line is one write(2) of at most PIPE_BUF bytes, so in a pipe the
// lines of several threads and processes never mix. A longer line is cut and ends in "...".
//
// While a LogWriter exists (log_writer.hpp), its thread writes the lines, and a thread that logs does not wait. Without
// a LogWriter, a thread that logs waits while nobody reads the output. The hot path never logs, because each line costs
// formatting, a reading of the clock and a system call.
//
// To a terminal, file or pipe:
//   2024-02-29T12:00:00.000001Z warning: text
// To the journal (JOURNAL_STREAM, sd-daemon(3)), which adds the time itself:
//   <4>text
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "pollcore/logging.hpp"

namespace pollcore {

/// Sends lines to `fd` instead of stderr. `fd` remains the caller's. Only this call checks whether `fd` is the journal.
/// It first waits, for LogWriter::kPatience at most, until the waiting lines are written to the previous descriptor.
/// Lines that still wait after that go to `fd`.
void set_log_output(int fd) noexcept;

namespace log_detail {

enum class Format { plain, journal };

[[nodiscard]] bool wanted(LogLevel level) noexcept;
void write_line(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;

/// Finds out whether `fd` is the stream of the journal. `journal_stream` names this stream as "DEVICE:INODE". Null
/// means that there is no journal.
[[nodiscard]] Format detect_format(int fd, const char* journal_stream) noexcept;
/// A line of the log, as it is written, and as a function of the program gets it.
struct Line {
    std::string written;  ///< with its prefix and newline
    std::size_t text_at = 0;
    LogLevel level = LogLevel::info;
    std::chrono::system_clock::time_point time{};

    [[nodiscard]] LogLine parts() const noexcept {
        return {level, time, std::string_view(written).substr(text_at, written.size() - text_at - 1)};
    }
};
/// Gets each line that is logged, besides the log.
class LineKeeper {
public:
    /// Called by the thread that logs, one thread at a time. Must be quick, and must not log.
    virtual void keep(const Line& line) noexcept = 0;

protected:
    ~LineKeeper() = default;
};
void add_keeper(LineKeeper& keeper);
/// After this returns, the keeper is not called.
void remove_keeper(const LineKeeper& keeper) noexcept;
/// Control characters in `text` are escaped, so that a line stays one line.
[[nodiscard]] Line make_line(Format format, LogLevel level, std::chrono::system_clock::time_point time,
                             std::string_view text);

// For the LogWriter's thread.
[[nodiscard]] int output_fd() noexcept;
/// Writes a line by one write(2). Returns false if this fails; the caller then counts the line as lost.
[[nodiscard]] bool write_now(const Line& line) noexcept;
/// Counts `lines` lost lines. Call report_lost() for these lines when all lines logged before them are written. The log
/// reports the loss after that call.
void count_lost(std::uint64_t lines) noexcept;
void report_lost(std::uint64_t lines) noexcept;
/// If there are lost lines to report, passes a line with their number to `deliver`. If that returns false, a later call
/// reports these lines. `deliver` must not throw.
void say_losses(const std::function<bool(const Line&)>& deliver) noexcept;

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (wanted(level)) {
        write_line(level, format, fmt::make_format_args(args...));
    }
}

}  // namespace log_detail

/// For something that was asked for and did not happen.
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::error, format, std::forward<Args>(args)...);
}
/// For a state in which work goes on, but not as the operator would want it.
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::warning, format, std::forward<Args>(args)...);
}
/// For an event that an operator wants to find in the log later.
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::info, format, std::forward<Args>(args)...);
}
/// For facts that only a developer needs.
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::debug, format, std::forward<Args>(args)...);
}

}  // namespace pollcore
