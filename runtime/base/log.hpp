// Log lines to stderr, with levels, for an operator or the journal to read.
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
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "pollcore/config.hpp"

namespace pollcore {

/// Lines that are less important than `level` are left out. The level is info at the start.
void set_log_level(LogLevel level) noexcept;
[[nodiscard]] LogLevel log_level() noexcept;

/// Sends lines to `fd` instead of stderr. `fd` remains the caller's. Only this call checks whether `fd` is the journal.
/// It first waits, for LogWriter::kPatience at most, until the waiting lines are written to the previous descriptor.
/// Lines that still wait after that go to `fd`.
void set_log_output(int fd) noexcept;

/// The number of lines lost since the process began. A line is lost if the log's descriptor does not take it (a full
/// non-blocking pipe, a full disk), if there is no memory, if too many lines wait for a LogWriter, or if the last
/// LogWriter ends before it can write the line. A line with the number of lost lines follows the next line that can be
/// written.
[[nodiscard]] std::uint64_t log_lines_lost() noexcept;

namespace log_detail {

enum class Format { plain, journal };

[[nodiscard]] bool wanted(LogLevel level) noexcept;
void write_line(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;

/// Finds out whether `fd` is the stream of the journal. `journal_stream` names this stream as "DEVICE:INODE". Null
/// means that there is no journal.
[[nodiscard]] Format detect_format(int fd, const char* journal_stream) noexcept;
/// The line with its prefix and newline. Control characters in `text` are escaped, so that a line stays one line.
[[nodiscard]] std::string make_line(Format format, LogLevel level, std::chrono::system_clock::time_point time,
                                    std::string_view text);

// For the LogWriter's thread.
[[nodiscard]] int output_fd() noexcept;
/// Writes a line by one write(2). If this fails, counts the line as lost and returns false.
bool write_now(std::string_view line) noexcept;
/// Counts `lines` lost lines. Call report_lost() for these lines when all lines logged before them are written. The log
/// reports the loss after that call.
void count_lost(std::uint64_t lines) noexcept;
void report_lost(std::uint64_t lines) noexcept;
[[nodiscard]] bool losses_unsaid() noexcept;
/// Writes a line with the number of lost lines. If the write fails, a later call reports these lines.
void say_losses() noexcept;

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
