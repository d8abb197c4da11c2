// The lines that this library logs: which of them, and where they go. They go to stderr, or to a function of the
// program.
//
//     #include <pollcore/logging.hpp>
//
//     #include <syslog.h>
//
//     void log_to_syslog() {
//         pollcore::set_log_function([](const pollcore::LogLine& line) {
//             ::syslog(line.level == pollcore::LogLevel::error ? LOG_ERR : LOG_NOTICE, "%.*s",
//                      static_cast<int>(line.text.size()), line.text.data());
//         });
//     }
//
// Thread safety: any thread may call all functions. They concern the whole process: all runtimes and attachments in it.
// fork(): a child logs to stderr until it sets a function of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include "pollcore/export.h"
#include "pollcore/limits.hpp"

namespace pollcore {

/// From the most important lines to the least important ones.
enum class LogLevel { error, warning, info, debug };

/// Lines that are less important than `level` are left out. The level is info at the start. The constructor of a
/// Runtime sets Config::log_level.
POLLCORE_API void set_log_level(LogLevel level) noexcept;
[[nodiscard]] POLLCORE_API LogLevel log_level() noexcept;

/// One line of the log.
struct LogLine {
    LogLevel level = LogLevel::info;
    std::chrono::system_clock::time_point time{};  ///< when the line was logged
    /// The text, without level and time. It has less than 4096 bytes, none of which is a newline or another control
    /// character. Valid until the function returns.
    std::string_view text{};
};

/// Takes the lines. One thread of the library makes all calls, one after the other, in the order in which the lines
/// were logged. The thread gets no signals. It does nothing else, so the function may block: no other thread of the
/// library waits for it, nor does a thread that logs. Meanwhile up to kLogLinesMax lines wait. Further lines are lost
/// and counted; a later line says how many. The function may make all calls of this library. If it throws, the line is
/// lost and counted, too.
using LogFunction = std::function<void(const LogLine&)>;

/// From now on `function` takes the lines that are logged, instead of stderr or of the previous function. An empty
/// function means stderr. May be called at any time. Each line goes to one of the two places, none is lost and none
/// goes to both: the lines that were logged before this call go to the previous place. If that takes longer than a
/// second, the rest goes to the new place.
///
/// The previous function is not called after this call has returned, so this call waits, without a limit, for a call
/// of the previous function that is under way. Do not hold a lock that the previous function takes. If a function makes
/// this call itself, nothing is waited for, and the waiting lines go to the new place.
///
/// When a process ends by exit(3), the waiting lines are taken before, for a second at most. Set an empty function
/// before something that the function uses is destroyed. Throws std::system_error, and changes nothing, if no thread
/// is available.
POLLCORE_API void set_log_function(LogFunction function);

/// The number of lines lost since the process began. A line is lost if too many lines wait, if there is no memory, if
/// the function throws or, without a function, if stderr does not take the line (a full non-blocking pipe, a full
/// disk). A line with the number of lost lines follows the next line that can be delivered.
[[nodiscard]] POLLCORE_API std::uint64_t log_lines_lost() noexcept;

/// Waits until the lines logged so far are delivered or lost. Returns false if `within` has passed and some lines still
/// wait. Call this before abort(3) or _exit(2), which lose all waiting lines. In the log function, this call returns at
/// once.
POLLCORE_API bool flush_log(std::chrono::milliseconds within) noexcept;

}  // namespace pollcore
