// Log lines to stderr, with levels, for an operator or the journal to read.
//
// Thread safety: all functions, from any thread. A line is one write(2), at most PIPE_BUF bytes, so that the
// lines of several threads and processes never mix. What does not fit is cut and ends in "...".
// Never called from the hot path: a line formats, reads the clock and makes a system call.
// To a terminal, file or pipe:  2024-02-29T12:00:00.000001Z warning: text
// To the journal (JOURNAL_STREAM, sd-daemon(3)), which has the time by itself:  <4>text
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

/// Sends lines to another open file descriptor than stderr, which stays the caller's. Whether it is the
/// journal is looked at here, once.
void set_log_output(int fd) noexcept;

/// Lines that could not be written, since the process began (stderr closed, a full non-blocking pipe). The
/// next line that can be written is followed by one that says how many.
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
/// It goes on, but not as the operator would want it.
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::warning, format, std::forward<Args>(args)...);
}
/// What an operator wants to have read when looking back.
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::info, format, std::forward<Args>(args)...);
}
/// What a developer wants to know.
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) noexcept {
    log_detail::log(LogLevel::debug, format, std::forward<Args>(args)...);
}

}  // namespace pollcore
