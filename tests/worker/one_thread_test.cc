// SessionOptions::check_thread, and POLLCORE_CHECK_THREAD=1: the library notices a second thread that uses a session.
#include <array>
#include <chrono>
#include <cstdlib>
#include <span>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"

namespace pollcore::testing {
namespace {

constexpr const char* kSays =
    "error: .*thread [0-9]+ uses session [0-9]+ of thread [0-9]+: a session is used by one thread at a time";

class OneThreadDeathTest : public ::testing::Test {
protected:
    // This style is needed because this process has other threads.
    OneThreadDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

    static void in_another_thread(auto&& call) { std::thread(call).join(); }
    static void poll(Session& session) {
        std::array<Completion, 1> completion;
        (void)session.poll(completion);
    }

    static Config config() {
        Config config;
        config.share_cores = true;  // other tests may run on these cores at the same time
        config.devices.emplace_back().name = "net0";
        config.workers.push_back({.name = "w0", .core = test::last_cpu(), .idle = IdlePolicy::yield});
        return config;
    }

    Runtime runtime{config()};
};

TEST_F(OneThreadDeathTest, IsWhatASessionThatChecksItsThreadHas) {
    Session session = runtime.open_session({.check_thread = true});
    poll(session);
    EXPECT_DEATH(in_another_thread([&] { poll(session); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.try_submit(WorkRequest{}); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.try_submit(std::span<const WorkRequest>{}); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.try_submit(WorkRequest{}, std::span<const Sge>{}); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.try_submit_inline(WorkRequest{}, {}); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.release(std::span<const Completion>{}); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.wait(std::chrono::nanoseconds(0)); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.arm(); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.retired({}); }), kSays);
    EXPECT_DEATH(in_another_thread([&] { (void)session.figures(); }), kSays);
}

TEST_F(OneThreadDeathTest, IsCheckedWhereTheEnvironmentSaysSo) {
    ASSERT_EQ(::setenv("POLLCORE_CHECK_THREAD", "1", 1), 0);
    Session session = runtime.open_session();
    ::unsetenv("POLLCORE_CHECK_THREAD");
    poll(session);
    EXPECT_DEATH(in_another_thread([&] { poll(session); }), kSays);
}

TEST_F(OneThreadDeathTest, IsAnotherAfterTheSessionWasHandedOverOrMoved) {
    Session session = runtime.open_session({.check_thread = true});
    poll(session);
    session.hand_over();
    in_another_thread([&] { poll(session); });
    EXPECT_DEATH(poll(session), kSays);
    Session moved = std::move(session);
    poll(moved);
    EXPECT_DEATH(in_another_thread([&] { poll(moved); }), kSays);
    session = std::move(moved);  // moves the session back to its former place
    in_another_thread([&] { poll(session); });
    EXPECT_DEATH(poll(session), kSays);
}

}  // namespace
}  // namespace pollcore::testing
