// A forked child has none of its parent's threads: the child's calls on the parent's objects are refused at once, and
// these objects end with the parent.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "attach/own_server.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

constexpr auto kHangLimit = 60s;

/// Runs `body` in a forked child and returns its result. Kills the child if it hangs.
int exit_status_of_child(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(body());
    }
    const auto until = std::chrono::steady_clock::now() + kHangLimit;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > until) {
            ::kill(child, SIGKILL);
            ::waitpid(child, &status, 0);
            return -SIGKILL;
        }
        std::this_thread::sleep_for(1ms);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool is_refused(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.code().value() == EPERM;
    }
    return false;
}

/// Objects of most kinds.
struct Things {
    explicit Things(Context& context)
        : session(context.open_session()),
          memory(context.allocate(4096, Access::all())),
          pd(context.create_protection_domain()),
          srq(context.create_shared_receive_queue({.session = &session, .depth = 4})),
          window(context.create_memory_window(session)),
          a(context.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()})),
          b(context.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()})),
          way(context.create_address_handle(b.info())),
          listener(context.listen("forked")) {
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }

    /// Sends a message from a to b.
    void expect_traffic() {
        WorkRequest request{
            .sge = {memory.addr(), 64, memory.lkey()}, .qp = b.handle(), .opcode = Opcode::recv, .num_sge = 1};
        ASSERT_EQ(session.try_submit(request), Refusal::none);
        request.qp = a.handle();
        request.opcode = Opcode::send;
        request.flags = kSignaled;
        ASSERT_EQ(session.try_submit(request), Refusal::none);
        const auto until = std::chrono::steady_clock::now() + kHangLimit;
        for (int ended = 0; ended < 2;) {
            ASSERT_LT(std::chrono::steady_clock::now(), until);
            Completion completion;
            if (session.poll({&completion, 1}) == 1) {
                EXPECT_EQ(completion.status, Status::success);
                ++ended;
            }
        }
    }

    Session session;
    MemoryRegion memory;
    ProtectionDomain pd;
    SharedReceiveQueue srq;
    MemoryWindow window;
    QueuePair a;
    QueuePair b;
    AddressHandle way;
    Listener listener;
};

/// Call it in the child. Returns a bit for each call that is not refused at once.
int what_is_not_refused(Context& context, Things& things) {
    return (is_refused([&] { (void)context.open_session(); }) ? 0 : 1) |
           (is_refused([&] { (void)things.a.info(); }) ? 0 : 2) |
           (is_refused([&] { (void)things.a.reset(); }) ? 0 : 4) |
           (is_refused([&] { (void)things.b.close(); }) ? 0 : 8) |
           (is_refused([&] { things.memory.deregister(); }) ? 0 : 16) |
           (is_refused([&] { (void)context.poll_event(); }) ? 0 : 32);
}

class AForkedChild : public ::testing::Test {
protected:
    Runtime runtime{test::one_soft_device(64)};
};

TEST_F(AForkedChild, HasNothingOfARuntimeOfItsParent) {
    auto things = std::make_unique<Things>(runtime);
    EXPECT_EQ(exit_status_of_child([&] {
                  const int missing =
                      what_is_not_refused(runtime, *things) | (is_refused([&] { (void)runtime.stop(); }) ? 0 : 64);
                  things.reset();
                  Runtime last = std::move(runtime);
                  return missing;
              }),
              0);
    things->expect_traffic();
    things.reset();
    EXPECT_TRUE(runtime.stop());
}

TEST_F(AForkedChild, HasNothingOfAnAttachmentOfItsParent) {
    auto server = std::make_unique<AttachServer>(runtime, test::socket_named("fork"));
    std::optional<Attachment> attachment(test::patient({.path = test::socket_named("fork").path}));
    auto things = std::make_unique<Things>(*attachment);
    EXPECT_EQ(exit_status_of_child([&] {
                  const int missing = what_is_not_refused(*attachment, *things) |
                                      (is_refused([&] { (void)attachment->stop(); }) ? 0 : 64);
                  things.reset();
                  attachment.reset();
                  const bool stops = !is_refused([&] { (void)server->stop(1s); });
                  server.reset();
                  return missing | (stops ? 128 : 0);
              }),
              0);
    EXPECT_EQ(server->counts().now, 1u);
    things->expect_traffic();
    things.reset();
    EXPECT_TRUE(attachment->stop());
}

/// Number of mappings of this process whose names contain `name`.
int mappings_named(const std::string& name) {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
        count += line.find(name) != std::string::npos;
    }
    return count;
}

TEST_F(AForkedChild, HasNoMemoryOfAnAttachmentOfItsParent) {
    const AttachServer server(runtime, test::socket_named("fork"));
    Attachment attachment(test::patient({.path = test::socket_named("fork").path}));
    const Things things(attachment);
    for (const char* name : {"pollcore rings", "pollcore memory"}) {
        // The server runs in this process, too, so this process also has the server's mappings. The child keeps only
        // these.
        const int both = mappings_named(name);
        EXPECT_GE(both, 2) << name;
        EXPECT_EQ(exit_status_of_child([&] { return mappings_named(name); }), both / 2) << name;
    }
}

#if !defined(__SANITIZE_THREAD__)  // tsan supports no threads in the forked child of a process that has threads
// The child is refused, because it shares the heap of its parent's EAL (a part of DPDK). Otherwise parent and child
// could allocate the same memory.
TEST_F(AForkedChild, MakesNoRuntime) {
    EXPECT_TRUE(runtime.stop());
    EXPECT_EQ(exit_status_of_child([&] { return is_refused([] { Runtime own(test::one_soft_device(64)); }) ? 0 : 1; }),
              0);
}

TEST_F(AForkedChild, MayMakeAnAttachmentOfItsOwn) {
    const AttachConfig config = test::socket_named("fork");
    const AttachServer server(runtime, config);
    EXPECT_EQ(exit_status_of_child([&] {
                  Attachment own(test::patient({.path = config.path}));
                  Things things(own);
                  things.expect_traffic();
                  return HasFailure() ? 1 : 0;
              }),
              0);
}
#endif

}  // namespace
}  // namespace pollcore
