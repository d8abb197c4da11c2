// What the daemon's log says of attached processes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "attach/attach_fixture.hpp"
#include "base/unique_fd.hpp"
#include "give_way.hpp"
#include "held_clock_platform.hpp"
#include "log_capture.hpp"
#include "pollcore/attach.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using test::AttachTest;
using test::code_of;
using test::Pair;

struct WithHeldClock {
    test::HeldClock clock{1us};
};
class AttachHeldClockTest : protected WithHeldClock, public AttachTest {
protected:
    AttachHeldClockTest() : AttachTest(std::make_unique<test::HeldClockPlatform>(clock)) {}
};

TEST_F(AttachHeldClockTest, LinesAboutItsQueuePairsSayWhoseTheyAreAndAreTenASecond) {
    constexpr std::uint64_t kErrors = 40;
    const test::LogCapture log(LogLevel::warning);
    const Counter& events =
        runtime.control_counters().async_events_by_type[static_cast<std::size_t>(EventType::qp_access_err)];
    const auto cause_one = [&](Context& context, Session& session, const MemoryRegion& memory) {
        const std::uint64_t before = events.value();
        const Pair pair(
            context, {.name = "an \"end\"", .shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
        ASSERT_EQ(session.try_submit({.sge = {memory.addr(), 8, memory.lkey()},
                                      .remote_addr = memory.addr(),
                                      .rkey = memory.rkey() ^ 0xabcd00,
                                      .qp = pair.a.handle(),
                                      .opcode = Opcode::rdma_write,
                                      .flags = kSignaled,
                                      .num_sge = 1}),
                  Refusal::none);
        EXPECT_EQ(await(session, 1).at(0).status, Status::rem_access_err);
        for (const auto until = std::chrono::steady_clock::now() + 20s; events.value() == before;) {
            ASSERT_LT(std::chrono::steady_clock::now(), until) << "the target's device says nothing";
            test::give_way();
        }
    };
    {
        Session own = runtime.open_session();
        const MemoryRegion memory = runtime.allocate(4096, Access::all());
        cause_one(runtime, own, memory);
    }
    Attachment daemon = attach();
    Session session = daemon.open_session();
    const MemoryRegion memory = daemon.allocate(4096, Access::all());
    while (events.value() < kErrors) {
        ASSERT_NO_FATAL_FAILURE(cause_one(daemon, session, memory));
    }
    const std::string named = R"( "an \"end\"" of )";
    EXPECT_EQ(test::occurrences(log.text(), named + "this process: "), 1u) << log.text();
    EXPECT_EQ(test::occurrences(log.text(), named + "client 1: "), 9u) << log.text();
    clock.advance(1s);
    ASSERT_NO_FATAL_FAILURE(cause_one(daemon, session, memory));
    EXPECT_EQ(test::occurrences(log.text(), " of client 1: "), 10u) << log.text();
    EXPECT_NE(log.text().find("(30 lines like this were left out before)"), std::string::npos) << log.text();
}

TEST_F(AttachTest, ALogThatNobodyReadsHoldsUpNobody) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd unread(ends[0]);
    const UniqueFd full(ends[1]);
    const std::uint64_t lost = log_lines_lost();
    set_log_output(full.get());
    set_log_level(LogLevel::info);
    while (log_lines_lost() == lost) {
        log_info("{}", std::string(500, 'x'));
    }
    Attachment daemon = attach();  // the control thread logs this
    const Session session = daemon.open_session();
    EXPECT_TRUE(daemon.stop());
    // Takes the lines that wait to be written, so that they do not go to the terminal.
    EXPECT_NE(test::LogCapture(LogLevel::error).text(), "");
}

TEST_F(AttachTest, AFunctionThatTakesTheLogAndDoesNotReturnHoldsUpNobody) {
    const test::LogCapture others(LogLevel::info);
    std::promise<void> open;
    std::vector<std::string> taken;
    set_log_function([&, gate = open.get_future().share()](const LogLine& line) {
        gate.wait();
        taken.emplace_back(line.text);
    });
    Attachment daemon = attach();  // the control thread logs this
    const Session session = daemon.open_session();
    EXPECT_TRUE(daemon.stop());
    open.set_value();
    set_log_function({});
    EXPECT_TRUE(std::any_of(taken.begin(), taken.end(), [](const std::string& line) {
        return line.starts_with("client 1 attached: ");
    })) << ::testing::PrintToString(taken);
    EXPECT_EQ(others.text(), "");
}

TEST_F(AttachTest, NoNameThatAProcessGivesForgesAFieldOfTheLog) {
    const test::LogCapture log(LogLevel::info);
    Attachment daemon({.path = attach_config().path, .name = "a\", uid 0)\n"});
    EXPECT_EQ(code_of([&] { (void)daemon.listen("b), uid 0\x1b"); }), EINVAL);
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (log.text().find("requests were refused") == std::string::npos) {
        ASSERT_LT(std::chrono::steady_clock::now(), until) << log.text();
        std::this_thread::sleep_for(2ms);
    }
    const std::string uid = ", uid " + std::to_string(::getuid());
    EXPECT_NE(log.text().find(uid + R"(, as "a\", uid 0)\x0a"))"), std::string::npos) << log.text();
    EXPECT_NE(log.text().find(R"(the last one since: "cannot listen on \"b), uid 0\x1b\")"), std::string::npos)
        << log.text();
}

}  // namespace
}  // namespace pollcore
