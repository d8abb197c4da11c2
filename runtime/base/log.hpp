// Log lines to stderr, with levels, for an operator or the journal to read.
//
// Thread safety: all functions, from any thread. A line is one write(2), at most PIPE_BUF bytes, so that the
// lines of several threads and processes never mix. A longer line is cut and ends in "...".
//
// While a LogWriter lives (log_writer.hpp), a thread writes the lines, and a thread that logs does not wait. Without
// one, a reader that does not read makes it wait. Never called from the hot path: a line formats, reads the clock and
// makes a system call.
//
// To a terminal, file or pipe:
//   2024-02-29T12:00:00.000001Z warning: text
// To the journal (JOURNAL_STREAM, sd-daemon(3)), which has the time by itself:
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

/// Lines of lower importance than `level` are left out. At start: info.
void set_log_level(LogLevel level) noexcept;
[[nodiscard]] LogLevel log_level() noexcept;

/// Sends lines to `fd` instead of stderr; `fd` stays the caller's. Checks once, here, whether it is the journal. Lines
/// that wait for a LogWriter go to the previous descriptor for as long as LogWriter::kPatience, and then to this one.
void set_log_output(int fd) noexcept;

/// Lines lost since the process began, because stderr is closed, a non-blocking pipe is full, or too many lines wait
/// for a LogWriter. The next line that can be written is followed by one that says how many.
[[nodiscard]] std::uint64_t log_lines_lost() noexcept;

namespace log_detail {

enum class Format { plain, journal };

[[nodiscard]] bool wanted(LogLevel level) noexcept;
void write_line(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;

/// Is `fd` the stream that the journal named in `journal_stream` ("DEVICE:INODE", or null)?
[[nodiscard]] Format detect_format(int fd, const char* journal_stream) noexcept;
/// The line with its prefix and newline. Control characters in `text` are escaped: a line stays one line.
[[nodiscard]] std::string make_line(Format format, LogLevel level, std::chrono::system_clock::time_point time,
                                    std::string_view text);

// For the LogWriter's thread.
[[nodiscard]] int output_fd() noexcept;
/// One write(2) of a whole line. False: it failed, and the line counts as lost.
bool write_now(std::string_view line) noexcept;
/// Counts lost lines. The log says so after report_lost(), which is called when all lines logged before them are
/// written.
void count_lost(std::uint64_t lines) noexcept;
void report_lost(std::uint64_t lines) noexcept;
[[nodiscard]] bool losses_unsaid() noexcept;
/// Writes a line that says how many lines were lost. If that fails, a later call says it.
void say_losses() noexcept;

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (wanted(level)) {
        write_line(level, format, fmt::make_format_args(args...));
    }
}

}  // namespace log_detail

/// Something asked for did not happen.
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::error, format, std::forward<Args>(args)...);
}
/// Work goes on, but not as the operator would want it.
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::warning, format, std::forward<Args>(args)...);
}
/// Something that an operator wants to find when looking back.
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::info, format, std::forward<Args>(args)...);
}
/// Something that a developer wants to know.
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::debug, format, std::forward<Args>(args)...);
}

}  // namespace pollcore
