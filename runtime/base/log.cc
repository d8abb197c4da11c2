#include "base/log.hpp"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <mutex>
#include <new>
#include <vector>

#include <fmt/format.h>

#include "base/log_writer.hpp"

namespace pollcore {
namespace {

using log_detail::Format;

// The descriptor and the format of the log. Both are in one word, so that no thread sees half of a change. The word is
// aligned, because otherwise clang would not store it by one instruction.
struct alignas(8) Output {
    int fd;
    Format format;
};

// All accesses are relaxed: the words are independent of each other, and a line that still uses an old value does no
// harm.
std::atomic<LogLevel> current_level{LogLevel::info};
std::atomic<std::uint64_t> lines_lost{0};
std::atomic<std::uint64_t> lines_to_report{0};  // lost lines that the log may report now
std::atomic<std::uint64_t> lines_reported{0};

std::atomic<Output>& output() {
    static std::atomic<Output> current{
        Output{STDERR_FILENO, log_detail::detect_format(STDERR_FILENO, std::getenv("JOURNAL_STREAM"))}};
    return current;
}

class Keepers {
public:
    void add(log_detail::LineKeeper& keeper) {
        const std::lock_guard lock(mutex_);
        all_.push_back(&keeper);
    }
    void remove(const log_detail::LineKeeper& keeper) noexcept {
        const std::lock_guard lock(mutex_);
        std::erase(all_, &keeper);
    }
    void keep(const log_detail::Line& line) {
        const std::lock_guard lock(mutex_);
        for (log_detail::LineKeeper* keeper : all_) {
            keeper->keep(line);
        }
    }

private:
    std::mutex mutex_;
    std::vector<log_detail::LineKeeper*> all_;
};

Keepers& keepers() {
    // Never destroyed: a thread may log while the process ends.
    alignas(Keepers) static std::array<std::byte, sizeof(Keepers)> place;
    static Keepers& all = *new (place.data()) Keepers;
    return all;
}

std::string_view level_name(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::error: return "error";
        case LogLevel::warning: return "warning";
        case LogLevel::info: return "info";
        case LogLevel::debug: return "debug";
    }
    return "level?";
}

// The priorities of syslog(3).
int journal_priority(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::error: return 3;
        case LogLevel::warning: return 4;
        case LogLevel::info: return 6;
        case LogLevel::debug: return 7;
    }
    return 3;
}

void append_timestamp(fmt::memory_buffer& line, std::chrono::system_clock::time_point time) {
    const auto since_epoch = time.time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(since_epoch - seconds).count();
    const std::time_t clock = seconds.count();
    std::tm utc{};
    ::gmtime_r(&clock, &utc);
    fmt::format_to(std::back_inserter(line), "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z ", utc.tm_year + 1900,
                   utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, micros);
}

// Returns true if the complete line was written. A line has at most PIPE_BUF bytes, so write(2) writes all of it,
// except in cases such as a full disk. A line that was written in part counts as lost.
bool write_once(int fd, std::string_view line) noexcept {
    for (;;) {
        const ssize_t written = ::write(fd, line.data(), line.size());
        if (written < 0 && errno == EINTR) {
            continue;
        }
        return written == static_cast<ssize_t>(line.size());
    }
}

}  // namespace

void set_log_level(LogLevel level) noexcept {
    current_level.store(level, std::memory_order_relaxed);
}

LogLevel log_level() noexcept {
    return current_level.load(std::memory_order_relaxed);
}

void set_log_output(int fd) noexcept {
    (void)flush_log(LogWriter::kPatience);
    output().store(Output{fd, log_detail::detect_format(fd, std::getenv("JOURNAL_STREAM"))}, std::memory_order_relaxed);
    log_detail::output_changed();
}

std::uint64_t log_lines_lost() noexcept {
    return lines_lost.load(std::memory_order_relaxed);
}

namespace log_detail {

void add_keeper(LineKeeper& keeper) {
    keepers().add(keeper);
}

void remove_keeper(const LineKeeper& keeper) noexcept {
    keepers().remove(keeper);
}

bool wanted(LogLevel level) noexcept {
    return level <= log_level();
}

Format detect_format(int fd, const char* journal_stream) noexcept {
    if (journal_stream == nullptr) {
        return Format::plain;
    }
    char* end = nullptr;
    const auto device = std::strtoull(journal_stream, &end, 10);
    if (end == journal_stream || *end != ':') {
        return Format::plain;
    }
    const char* const second = end + 1;
    const auto inode = std::strtoull(second, &end, 10);
    if (end == second || *end != '\0') {
        return Format::plain;
    }
    // A program with a redirected stderr inherits JOURNAL_STREAM, too. So the numbers of the file itself decide.
    struct stat info {};
    const bool same = ::fstat(fd, &info) == 0 && info.st_dev == device && info.st_ino == inode;
    return same ? Format::journal : Format::plain;
}

Line make_line(Format format, LogLevel level, std::chrono::system_clock::time_point time, std::string_view text) {
    constexpr std::string_view kCut = "...";
    constexpr std::size_t kTextEnd = PIPE_BUF - kCut.size() - 1;

    fmt::memory_buffer line;
    const auto out = std::back_inserter(line);
    if (format == Format::journal) {
        fmt::format_to(out, "<{}>", journal_priority(level));
    } else {
        append_timestamp(line, time);
        fmt::format_to(out, "{}: ", level_name(level));
    }
    const std::size_t text_at = line.size();
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = byte < 0x20 || byte == 0x7f;
        const std::size_t width = !control ? 1 : c == '\n' || c == '\t' ? 2 : 4;
        if (line.size() + width > kTextEnd) {
            line.append(kCut);
            break;
        }
        if (!control) {
            line.push_back(c);
        } else if (c == '\n') {
            line.append(std::string_view("\\n"));
        } else if (c == '\t') {
            line.append(std::string_view("\\t"));
        } else {
            fmt::format_to(out, "\\x{:02x}", byte);
        }
    }
    line.push_back('\n');
    return {.written = fmt::to_string(line), .text_at = text_at, .level = level, .time = time};
}

int output_fd() noexcept {
    return output().load(std::memory_order_relaxed).fd;
}

bool write_now(const Line& line) noexcept {
    return write_once(output_fd(), line.written);
}

void count_lost(std::uint64_t lines) noexcept {
    lines_lost.fetch_add(lines, std::memory_order_relaxed);
}

void report_lost(std::uint64_t lines) noexcept {
    lines_to_report.fetch_add(lines, std::memory_order_relaxed);
}

// Each loss is logged once, by the thread whose compare-exchange succeeds.
void say_losses(const std::function<bool(const Line&)>& deliver) noexcept {
    std::uint64_t said = lines_reported.load(std::memory_order_relaxed);
    const std::uint64_t lost = lines_to_report.load(std::memory_order_relaxed);
    if (lost <= said || !lines_reported.compare_exchange_strong(said, lost, std::memory_order_relaxed)) {
        return;
    }
    bool delivered = false;
    try {
        delivered = deliver(make_line(output().load(std::memory_order_relaxed).format, LogLevel::warning,
                                      std::chrono::system_clock::now(),
                                      fmt::format("{} log lines before this could not be written", lost - said)));
    } catch (const std::exception&) {
        // There is no memory for the line. A later call reports the loss.
    }
    if (!delivered) {
        lines_reported.fetch_sub(lost - said, std::memory_order_relaxed);
    }
}

void write_line(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept {
    // Keeps errno, because a caller may log before it reads errno.
    const int saved_errno = errno;
    try {
        const Format form = output().load(std::memory_order_relaxed).format;
        Line line = make_line(form, level, std::chrono::system_clock::now(), fmt::vformat(format, args));
        keepers().keep(line);
        if (hand_over(line)) {
            // The LogWriter's thread does the rest.
        } else if (write_now(line)) {
            say_losses(write_now);
        } else {
            count_lost(1);
            report_lost(1);
        }
    } catch (const std::exception&) {
        // There was no memory, or a formatter threw an exception. The line is lost, and counted.
        count_lost(1);
        report_lost(1);
    }
    errno = saved_errno;
}

}  // namespace log_detail
}  // namespace pollcore
