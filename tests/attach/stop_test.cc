// Stops an attached process (SIGSTOP), as a debugger does. The process runs the example stream.cc, which sends itself
// messages and checks that each arrives once, in order and whole.
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "attach/daemon_fixture.hpp"
#include "other_process.hpp"
#include "patient.hpp"

namespace pollcore::test {
namespace {

class StopTest : public DaemonTest {
protected:
    StopTest() {
        // The process belongs to another user, who may not be able to read the build directory.
        std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
        std::filesystem::copy_file(test_program("../apps/examples/stream"), directory_.path() / "stream");
        config_.attach.mode = 0666;
    }

    /// Starts a stream, which takes at least three seconds.
    [[nodiscard]] Process start_stream() const {
        const std::string user = std::to_string(kOtherUser);
        return Process({"/usr/bin/setpriv", "--reuid", user, "--regid", user, "--clear-groups",
                        directory_.path() / "stream", socket(), "credits", "both", "stopped", "3000", "1000"},
                       {}, directory_.path());
    }
    static void halt_in_the_middle(const Process& stream) {
        const auto until = Clock::now() + kPatience;
        while (stream.out().find("writing to") == std::string::npos) {
            ASSERT_LT(Clock::now(), until) << stream.out() << stream.err();
            std::this_thread::sleep_for(2ms);
        }
        stream.halt();
        ASSERT_EQ(stream.out().find("read"), std::string::npos) << stream.out();
    }
    static bool go_on(const Witness& one, const Witness& other) {
        return one.checks_more_than(one.checked() + 1000) && other.checks_more_than(other.checked() + 1000);
    }
    static std::string what_is_wrong(Witness& one, Witness& other) {
        one.join();
        other.join();
        return one.wrong() + other.wrong();
    }
    /// Lets a process go on whose attachment has ended.
    static void expect_it_learns(Process& stream) {
        stream.signal(SIGCONT);
        EXPECT_EQ(stream.wait(), 1) << stream.out() << stream.err();
        EXPECT_NE(stream.err().find("has ended this attachment"), std::string::npos) << stream.err();
        EXPECT_NE(stream.err().find("POLLCORE_"), std::string::npos) << "its requests in flight: " << stream.err();
    }
};

TEST_F(StopTest, OfAProcessIsNoticedByNobodyElseAndItGoesOn) {
    Process daemon = start_daemon();
    Witness one(socket());
    Witness other(socket());
    Process stream = start_stream();
    ASSERT_NO_FATAL_FAILURE(halt_in_the_middle(stream));
    const auto until = Clock::now() + std::chrono::seconds(rounds_of("POLLCORE_STOP_SECONDS", 3));
    do {
        ASSERT_TRUE(go_on(one, other)) << daemon.err();
        (void)Attachment(test::patient({.path = socket()})).open_session();
    } while (Clock::now() < until);
    stream.signal(SIGCONT);
    EXPECT_EQ(stream.wait(4 * kPatience), 0) << stream.out() << stream.err();
    EXPECT_NE(stream.out().find("read 3000 messages, each once, in order and whole"), std::string::npos)
        << stream.out();
    EXPECT_EQ(what_is_wrong(one, other), "");
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

TEST_F(StopTest, OfAProcessThatMayNoLongerBeAttachedDoesNotKeepItAttached) {
    Process daemon = start_daemon();
    Witness one(socket());
    Witness other(socket());
    ASSERT_TRUE(go_on(one, other)) << daemon.err();
    const auto queue_pairs = [&] { return one.daemon().control_counters().queue_pairs.value(); };
    const std::uint64_t before = queue_pairs();
    Process stream = start_stream();
    ASSERT_NO_FATAL_FAILURE(halt_in_the_middle(stream));
    ASSERT_GT(queue_pairs(), before);
    config_.attach.users = {std::to_string(::getuid())};
    (void)directory_.write("pollcored.toml", print_config(config_));
    daemon.signal(SIGHUP);
    for (const auto until = Clock::now() + kPatience; queue_pairs() != before;) {
        ASSERT_LT(Clock::now(), until) << daemon.err();
        std::this_thread::sleep_for(2ms);
    }
    EXPECT_TRUE(daemon.await_log("may not be attached any more")) << daemon.err();
    EXPECT_TRUE(go_on(one, other)) << daemon.err();
    expect_it_learns(stream);
    EXPECT_EQ(what_is_wrong(one, other), "");
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

TEST_F(StopTest, OfAProcessDoesNotHoldUpTheDaemonsEnd) {
    Process daemon = start_daemon();
    Attachment other(test::patient({.path = socket()}));
    Process stream = start_stream();
    ASSERT_NO_FATAL_FAILURE(halt_in_the_middle(stream));
    EXPECT_TRUE(other.stop());
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    expect_it_learns(stream);
}

}  // namespace
}  // namespace pollcore::test
