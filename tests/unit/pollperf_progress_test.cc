// The line on a terminal that says how far a measurement is.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "pollperf/report/progress.hpp"

namespace pollcore::perf {
namespace {

class PollperfTerminal : public testing::Test {
protected:
    PollperfTerminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
        if (master_ >= 0 && ::grantpt(master_) == 0 && ::unlockpt(master_) == 0) {
            slave_ = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
        }
    }
    ~PollperfTerminal() override {
        ::close(slave_);
        ::close(master_);
    }
    std::string printed() const {
        std::array<char, 4096> buffer{};
        const ssize_t n = ::read(master_, buffer.data(), buffer.size());
        return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0))};
    }

    int master_ = -1;
    int slave_ = -1;
};

constexpr const char* kErased = "\r\x1b[K";

TEST_F(PollperfTerminal, AShortMeasurementPrintsNothing) {
    ASSERT_GE(slave_, 0) << "no terminal can be made here";
    {
        Progress progress(10, {}, slave_);
        progress.step("send, 2 bytes, direct");
        progress.step("send, 2 bytes, direct");
    }
    EXPECT_EQ(printed(), "");
}

TEST_F(PollperfTerminal, ALongOneRewritesALineAndErasesIt) {
    ASSERT_GE(slave_, 0) << "no terminal can be made here";
    {
        const auto began = std::chrono::steady_clock::now();
        Progress progress(4, std::chrono::seconds(8), slave_);
        progress.step("send: round 1 of 4");
        EXPECT_EQ(printed(), std::string(kErased) + "send: round 1 of 4 [0 %, 8 s left]");
        ::usleep(100'000);
        const std::string second = std::string(kErased) + "send: round 2 of 4 [25 %, ";
        const auto before = std::chrono::steady_clock::now();
        progress.step("send: round 2 of 4");
        const std::string line = printed();
        // A quarter took 100 ms, or longer on a busy machine. The rest takes three times as long, in whole seconds.
        const auto passed = std::chrono::steady_clock::now() - began;
        EXPECT_TRUE(line.starts_with(second) && line.ends_with(" s left]")) << line;
        EXPECT_TRUE(passed > std::chrono::milliseconds(166) || line == second + "0 s left]") << line;
        progress.step("too soon after the last");
        const std::string third = printed();
        if (std::chrono::steady_clock::now() - before < std::chrono::milliseconds(50)) {
            EXPECT_EQ(third, "");
        }
    }
    EXPECT_EQ(printed(), kErased);
}

TEST_F(PollperfTerminal, WithoutAnExpectationItAppearsAfterASecond) {
    ASSERT_GE(slave_, 0) << "no terminal can be made here";
    Progress progress(4, {}, slave_);
    progress.step("one");
    progress.step("two");
    ::usleep(1'010'000);
    EXPECT_EQ(printed(), "");
    progress.step("three");
    EXPECT_EQ(printed(), std::string(kErased) + "three [50 %, 1 s left]");
}

TEST_F(PollperfTerminal, ALineIsNoWiderThanTheTerminal) {
    ASSERT_GE(slave_, 0) << "no terminal can be made here";
    const winsize window{.ws_row = 25, .ws_col = 20, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(slave_, TIOCSWINSZ, &window), 0);
    Progress progress(4, std::chrono::seconds(8), slave_);
    progress.step(std::string(100, 'x'));
    EXPECT_EQ(printed(), kErased + std::string(19, 'x'));
}

TEST(PollperfProgress, WhatIsNoTerminalGetsNothing) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
    {
        Progress progress(2, std::chrono::hours(1), ends[1]);
        progress.step("one");
        progress.step("two");
    }
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), -1);
    ::close(ends[0]);
    ::close(ends[1]);
}

}  // namespace
}  // namespace pollcore::perf
