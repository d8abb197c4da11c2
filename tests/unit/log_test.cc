// Log lines: their format, that each line is one write, and what happens after a failed write.
#include "base/log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"

namespace pollcore {
namespace {

using log_detail::Format;

constexpr std::chrono::system_clock::time_point kLeapDay{std::chrono::microseconds(1'709'208'000'000'001)};

std::string line_of(Format format, LogLevel level, std::chrono::system_clock::time_point time,
                    const std::string& text) {
    return log_detail::make_line(format, level, time, text).written;
}

// During a test the log is written to a packet pipe: each read returns the data of one write.
class LogTest : public testing::Test {
protected:
    void SetUp() override {
        int ends[2];
        ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK | O_DIRECT), 0);
        reader_.reset(ends[0]);
        writer_.reset(ends[1]);
        ::unsetenv("JOURNAL_STREAM");
        set_log_output(writer_.get());
        set_log_level(LogLevel::info);
        // Lets the log report lines that an earlier test may have lost, and drops these reports.
        log_info("begin");
        while (!next_write().empty()) {
        }
    }
    void TearDown() override {
        ::unsetenv("JOURNAL_STREAM");
        set_log_output(STDERR_FILENO);
        set_log_level(LogLevel::info);
    }

    // The data of the next write, or an empty text if there was none.
    std::string next_write() {
        std::string text(PIPE_BUF, '\0');
        const ssize_t got = ::read(reader_.get(), text.data(), text.size());
        text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        return text;
    }

    std::string journal_stream() const {
        struct stat info {};
        EXPECT_EQ(::fstat(writer_.get(), &info), 0);
        return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
    }

    UniqueFd reader_;
    UniqueFd writer_;
};

TEST(LogLine, has_time_and_level_in_plain_form) {
    EXPECT_EQ(line_of(Format::plain, LogLevel::warning, kLeapDay, "text"),
              "2024-02-29T12:00:00.000001Z warning: text\n");
    EXPECT_EQ(line_of(Format::plain, LogLevel::error, kLeapDay, ""), "2024-02-29T12:00:00.000001Z error: \n");
}

TEST(LogLine, has_a_priority_for_the_journal) {
    EXPECT_EQ(line_of(Format::journal, LogLevel::error, kLeapDay, "a"), "<3>a\n");
    EXPECT_EQ(line_of(Format::journal, LogLevel::warning, kLeapDay, "a"), "<4>a\n");
    EXPECT_EQ(line_of(Format::journal, LogLevel::info, kLeapDay, "a"), "<6>a\n");
    EXPECT_EQ(line_of(Format::journal, LogLevel::debug, kLeapDay, "a"), "<7>a\n");
}

TEST(LogLine, stays_one_line_whatever_the_text) {
    EXPECT_EQ(line_of(Format::journal, LogLevel::info, kLeapDay, "a\nb\tc\x1b[31m\x7f\r"),
              "<6>a\\nb\\tc\\x1b[31m\\x7f\\x0d\n");
}

TEST(LogLine, is_given_to_a_function_without_prefix_and_newline) {
    for (const Format format : {Format::plain, Format::journal}) {
        const auto line = log_detail::make_line(format, LogLevel::warning, kLeapDay, "a\nb");
        EXPECT_EQ(line.parts().text, "a\\nb");
        EXPECT_EQ(line.parts().level, LogLevel::warning);
        EXPECT_EQ(line.parts().time, kLeapDay);
    }
}

TEST(LogLine, is_cut_where_a_pipe_would_tear_it) {
    for (const char filler : {'x', '\n', '\x01'}) {
        const std::string line = line_of(Format::plain, LogLevel::info, kLeapDay, std::string(2 * PIPE_BUF, filler));
        EXPECT_LE(line.size(), static_cast<std::size_t>(PIPE_BUF));
        EXPECT_GT(line.size(), static_cast<std::size_t>(PIPE_BUF) - 8);
        EXPECT_TRUE(line.ends_with("...\n"));
    }
}

TEST_F(LogTest, writes_each_line_at_once) {
    log_error("queue pair {} of {}", 7, "soft0");
    log_warning("no hugepages");
    std::string first = next_write();
    std::replace_if(
        first.begin(), first.end(), [](char c) { return c >= '0' && c <= '9'; }, '#');
    EXPECT_EQ(first, "####-##-##T##:##:##.######Z error: queue pair # of soft#\n");
    EXPECT_TRUE(next_write().ends_with("Z warning: no hugepages\n"));
    EXPECT_EQ(next_write(), "");
}

TEST_F(LogTest, leaves_out_what_is_below_its_level) {
    log_debug("left out");
    set_log_level(LogLevel::error);
    log_warning("left out");
    log_info("left out");
    EXPECT_EQ(next_write(), "");
    set_log_level(LogLevel::debug);
    log_debug("taken");
    EXPECT_TRUE(next_write().ends_with("debug: taken\n"));
}

TEST_F(LogTest, does_not_evaluate_a_format_that_is_left_out) {
    set_log_level(LogLevel::error);
    EXPECT_EQ(log_level(), LogLevel::error);
    log_debug("{}", 1);
    EXPECT_EQ(next_write(), "");
}

TEST_F(LogTest, speaks_to_the_journal_where_its_stream_is_the_journals) {
    ::setenv("JOURNAL_STREAM", journal_stream().c_str(), 1);
    set_log_output(writer_.get());
    log_warning("text");
    EXPECT_EQ(next_write(), "<4>text\n");
}

TEST_F(LogTest, speaks_plainly_where_the_journals_stream_is_another_or_unreadable) {
    EXPECT_EQ(log_detail::detect_format(writer_.get(), nullptr), Format::plain);
    EXPECT_EQ(log_detail::detect_format(writer_.get(), journal_stream().c_str()), Format::journal);
    EXPECT_EQ(log_detail::detect_format(STDERR_FILENO, journal_stream().c_str()), Format::plain);
    for (const std::string& wrong : {std::string(), std::string("1"), std::string(":"), std::string("1:"),
                                     journal_stream() + " ", "x" + journal_stream()}) {
        EXPECT_EQ(log_detail::detect_format(writer_.get(), wrong.c_str()), Format::plain) << wrong;
    }
    EXPECT_EQ(log_detail::detect_format(-1, journal_stream().c_str()), Format::plain);
}

TEST_F(LogTest, keeps_errno) {
    errno = ENOSPC;
    log_info("text");
    EXPECT_EQ(errno, ENOSPC);
    set_log_output(-1);
    errno = ENOSPC;
    log_info("lost");
    EXPECT_EQ(errno, ENOSPC);
}

TEST_F(LogTest, counts_the_lines_it_lost_and_says_so_once) {
    const std::uint64_t before = log_lines_lost();
    set_log_output(-1);
    log_info("lost");
    log_info("lost");
    log_info("lost");
    EXPECT_EQ(log_lines_lost(), before + 3);
    set_log_output(writer_.get());
    log_info("back");
    EXPECT_TRUE(next_write().ends_with("info: back\n"));
    EXPECT_TRUE(next_write().ends_with("warning: 3 log lines before this could not be written\n"));
    log_info("again");
    EXPECT_TRUE(next_write().ends_with("info: again\n"));
    EXPECT_EQ(next_write(), "");
}

TEST_F(LogTest, does_not_mix_the_lines_of_threads) {
    constexpr std::size_t kThreads = 4;
    constexpr std::size_t kLines = 500;
    ASSERT_EQ(::fcntl(writer_.get(), F_SETFL, 0), 0);  // makes it an ordinary, blocking pipe
    ASSERT_EQ(::fcntl(reader_.get(), F_SETFL, 0), 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([t] {
            for (std::size_t i = 0; i < kLines; ++i) {
                log_info("thread {} line {} {}", t, i, std::string(100, static_cast<char>('a' + static_cast<int>(t))));
            }
        });
    }
    // Read all lines before checking any, because the threads wait until the pipe is read.
    std::vector<std::string> lines;
    std::string text;
    while (lines.size() < kThreads * kLines) {
        text += next_write();
        for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
            lines.push_back(text.substr(0, end));
        }
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(text, "");
    std::map<int, int> next;
    for (const std::string& line : lines) {
        int thread = -1;
        int number = -1;
        ASSERT_EQ(std::sscanf(line.c_str(), "%*s info: thread %d line %d ", &thread, &number), 2) << line;
        ASSERT_EQ(number, next[thread]++) << line;
        ASSERT_TRUE(line.ends_with(' ' + std::string(100, static_cast<char>('a' + thread)))) << line;
    }
}

}  // namespace
}  // namespace pollcore
