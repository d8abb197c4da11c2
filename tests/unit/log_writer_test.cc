// The thread that writes the log. A thread that logs never waits for the log's reader, and lost lines are counted and
// reported.
#include "base/log_writer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

constexpr auto kHang = 20s;

// During a test the log is written to an ordinary pipe. A writer of a full pipe waits.
class LogWriterTest : public testing::Test {
protected:
    void SetUp() override {
        int ends[2];
        ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        reader_.reset(ends[0]);
        writer_.reset(ends[1]);
        ::unsetenv("JOURNAL_STREAM");
        set_log_output(writer_.get());
        set_log_level(LogLevel::info);
        // Lets the log report lines that an earlier test may have lost, and drops these reports.
        log_info("begin");
        char some[4096];
        do {
            ASSERT_GT(::read(reader_.get(), some, sizeof(some)), 0);
        } while (readable(0ms));
        lost_before_ = log_lines_lost();
    }
    void TearDown() override {
        set_log_output(STDERR_FILENO);
        set_log_level(LogLevel::info);
    }

    [[nodiscard]] std::uint64_t lost() const { return log_lines_lost() - lost_before_; }
    [[nodiscard]] bool readable(std::chrono::milliseconds within) const {
        pollfd pipe{.fd = reader_.get(), .events = POLLIN, .revents = 0};
        return ::poll(&pipe, 1, static_cast<int>(within.count())) == 1;
    }
    /// The text of the next line, without its time and level. It is empty if no line comes.
    std::string next_line() {
        while (buffer_.find('\n') == std::string::npos) {
            if (!readable(kHang)) {
                return {};
            }
            char some[4096];
            const ssize_t got = ::read(reader_.get(), some, sizeof(some));
            if (got <= 0) {
                return {};
            }
            buffer_.append(some, static_cast<std::size_t>(got));
        }
        const std::string line = buffer_.substr(0, buffer_.find('\n'));
        buffer_.erase(0, line.size() + 1);
        const std::size_t level = line.find(": ");
        return level == std::string::npos ? line : line.substr(level + 2);
    }
    /// Logs "line 0", "line 1" and so on until `lines` lines are lost. Each line is so long that a few of them fill the
    /// pipe.
    int log_until_lost(std::uint64_t lines) {
        int logged = 0;
        while (lost() < lines) {
            log_info("line {} {}", logged++, std::string(500, 'x'));
        }
        return logged;
    }
    static int number_of(const std::string& line) {
        int number = -1;
        return std::sscanf(line.c_str(), "line %d ", &number) == 1 ? number : -1;
    }
    static int lost_by(const std::string& line) {
        int number = 0;
        return std::sscanf(line.c_str(), "%d log lines before this could not be written", &number) == 1 ? number : 0;
    }

    UniqueFd reader_;
    UniqueFd writer_;
    std::string buffer_;
    std::uint64_t lost_before_ = 0;
};

TEST_F(LogWriterTest, writes_lines_in_their_order_on_a_thread_of_its_own) {
    std::thread::id settled_on;
    const LogWriter writer([&] { settled_on = std::this_thread::get_id(); });
    EXPECT_NE(settled_on, std::thread::id());
    EXPECT_NE(settled_on, std::this_thread::get_id());
    for (int i = 0; i < 1000; ++i) {
        log_info("line {} .", i);
        ASSERT_EQ(number_of(next_line()), i);
    }
    EXPECT_EQ(lost(), 0u);
}

TEST_F(LogWriterTest, keeps_nobody_waiting_for_a_reader_that_does_not_read) {
    constexpr int kThreads = 4;
    constexpr int kLines = 2000;
    std::optional<LogWriter> writer(std::in_place);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([] {
            for (int i = 0; i < kLines; ++i) {
                log_info("line {} {}", i, std::string(500, 'x'));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();  // all calls return although nothing was read
    }
    const std::uint64_t lost_unread = lost();
    EXPECT_GT(lost_unread, 0u);
    // Each line is either written or counted as missing.
    int written = 0;
    int missing = 0;
    while (written + missing < kThreads * kLines) {
        const std::string line = next_line();
        ASSERT_NE(line, "") << written << " lines were written and " << missing << " are said to be missing";
        written += number_of(line) >= 0;
        missing += lost_by(line);
    }
    EXPECT_EQ(written + missing, kThreads * kLines);
    EXPECT_EQ(static_cast<std::uint64_t>(missing), lost_unread);
    EXPECT_EQ(lost(), lost_unread);
    log_info("back");
    EXPECT_EQ(next_line(), "back");
}

TEST_F(LogWriterTest, says_what_is_missing_at_its_place) {
    const LogWriter writer;
    const int logged = log_until_lost(3);
    // The lines that were logged before the loss come without a report between them.
    for (int i = 0; i < logged - 3; ++i) {
        ASSERT_EQ(number_of(next_line()), i);
    }
    EXPECT_EQ(next_line(), "3 log lines before this could not be written");
    log_info("back");
    EXPECT_EQ(next_line(), "back");
}

TEST_F(LogWriterTest, holds_no_more_than_its_bytes) {
    const LogWriter writer;
    constexpr std::size_t kText = 3000;
    int logged = 0;
    while (lost() == 0) {
        log_info("line {} {}", logged++, std::string(kText, 'x'));
    }
    EXPECT_LT(static_cast<std::size_t>(logged - 1) * kText, LogWriter::kBytesMax + 128 * 1024)
        << "the pipe takes 64 KiB";
    EXPECT_GT(static_cast<std::size_t>(logged) * (kText + 100), LogWriter::kBytesMax);
}

TEST_F(LogWriterTest, leaves_the_others_who_write_to_its_output_alone) {
    const LogWriter writer;
    (void)log_until_lost(1);
    EXPECT_EQ(::fcntl(writer_.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(LogWriterTest, writes_in_its_end_what_waits) {
    int logged = 0;
    std::thread read;
    std::vector<std::string> lines;
    {
        const LogWriter writer;
        logged = log_until_lost(1);
        // More lines wait than the pipe takes, and so few that they are written within LogWriter::kPatience.
        while (static_cast<int>(lines.size()) < logged - 200) {
            lines.push_back(next_line());
        }
        read = std::thread([&] {
            while (static_cast<int>(lines.size()) < logged) {
                lines.push_back(next_line());
            }
        });
    }
    read.join();
    EXPECT_EQ(lost(), 1u);
    EXPECT_EQ(number_of(lines.front()), 0);
    EXPECT_EQ(number_of(lines.at(lines.size() - 2)), logged - 2);
    EXPECT_EQ(lost_by(lines.back()), 1);
}

TEST_F(LogWriterTest, ends_though_nobody_reads) {
    int logged = 0;
    {
        const LogWriter writer;
        logged = log_until_lost(1);
    }
    writer_.reset();
    set_log_output(STDERR_FILENO);
    int written = 0;
    while (number_of(next_line()) >= 0) {
        ++written;
    }
    EXPECT_GT(written, 0);
    EXPECT_EQ(lost(), static_cast<std::uint64_t>(logged - written)) << "what was not written is lost";
}

TEST_F(LogWriterTest, begins_again_after_an_end_that_was_cut_short) {
    {
        const LogWriter writer;
        (void)log_until_lost(1);
    }
    while (readable(0ms)) {
        char some[4096];
        ASSERT_GT(::read(reader_.get(), some, sizeof(some)), 0);
    }
    const LogWriter writer;
    log_info("back");
    EXPECT_EQ(next_line(), "back");
}

TEST_F(LogWriterTest, shares_its_thread) {
    std::optional<LogWriter> first([] {});
    bool settled_again = false;
    const LogWriter second([&] { settled_again = true; });
    log_info("line 0 .");
    EXPECT_EQ(number_of(next_line()), 0);
    EXPECT_FALSE(settled_again);
    first.reset();
    (void)log_until_lost(1);  // this call does not wait, which shows that a log writer is still running
    EXPECT_EQ(number_of(next_line()), 0);
}

TEST_F(LogWriterTest, flushes_when_somebody_reads) {
    const LogWriter writer;
    log_info("line 0 .");
    EXPECT_TRUE(flush_log(kHang));
    EXPECT_TRUE(readable(0ms)) << "it is written when flush_log() returns";
    (void)log_until_lost(1);
    EXPECT_FALSE(flush_log(0ms));
    std::thread read([&] {
        while (lost_by(next_line()) == 0) {
        }
    });
    EXPECT_TRUE(flush_log(kHang));
    read.join();
}

TEST_F(LogWriterTest, a_line_without_a_writer_is_written_by_who_logs_it) {
    log_info("line 0 .");
    EXPECT_TRUE(readable(0ms));
    EXPECT_TRUE(flush_log(0ms));
}

TEST_F(LogWriterTest, outlives_its_reader) {
    const LogWriter writer;
    reader_.reset();
    log_info("nobody is there");
    EXPECT_TRUE(flush_log(kHang));
    EXPECT_EQ(lost(), 1u) << "and no SIGPIPE has ended this process";
}

TEST_F(LogWriterTest, goes_on_with_another_output_where_the_old_one_has_stopped) {
    const LogWriter writer;
    const int logged = log_until_lost(1);
    const UniqueFd old_reader = std::move(reader_);
    const UniqueFd old_writer = std::move(writer_);
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_.reset(ends[0]);
    writer_.reset(ends[1]);
    set_log_output(writer_.get());
    const int first = number_of(next_line());
    EXPECT_GT(first, 0) << "the old one has those before";
    for (int i = first + 1; i < logged - 1; ++i) {
        ASSERT_EQ(number_of(next_line()), i);
    }
    EXPECT_EQ(lost_by(next_line()), 1);
}

TEST_F(LogWriterTest, a_forked_child_writes_by_itself) {
    const LogWriter writer;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        log_info("line 7 of a child");
        ::_exit(flush_log(0ms) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(next_line(), "line 7 of a child");
    log_info("line 8 of its parent");
    EXPECT_EQ(next_line(), "line 8 of its parent");
}

// These tests log in a child process, because the test framework reads this process's stderr.
class LogAtTheEnd : public testing::Test {
protected:
    // The writer is never destroyed, as in a program that ends while a thread still has its writer.
    static void log_some() {
        [[maybe_unused]] static const LogWriter& living = *new LogWriter;
        set_log_output(STDERR_FILENO);
        for (int i = 0; i < 200; ++i) {
            log_warning("line {}", i);
        }
    }
};
using LogAtTheEndDeathTest = LogAtTheEnd;

TEST_F(LogAtTheEndDeathTest, is_written_before_exit) {
    EXPECT_EXIT(
        {
            log_some();
            std::exit(3);
        },
        testing::ExitedWithCode(3), "warning: line 199\n");
}

TEST_F(LogAtTheEndDeathTest, stands_before_what_a_failed_check_says) {
    EXPECT_DEATH(
        {
            log_some();
            POLLCORE_CHECK(1 + 1 == 3, "arithmetic");
        },
        "warning: line 199\n.* error: .*arithmetic");
}

}  // namespace
}  // namespace pollcore
