// What a user and a process may have of a daemon, and that nobody keeps others out.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "attach/attach_fixture.hpp"
#include "attach/packet_socket.hpp"
#include "attach/wire.hpp"
#include "base/unique_fd.hpp"
#include "eventually.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using test::AttachTest;
using test::code_of;

TEST_F(AttachTest, HoldsEachProcessToItsQuota) {
    AttachConfig config = attach_config();
    config.sessions_max = 2;
    config.queue_pairs_max = 2;
    config.work_requests_max = 300;
    config.registered_max = (1u << 20) + 2 * rings_of({});
    server.configure(config);
    Attachment daemon = attach();
    Session session = daemon.open_session();
    Session second = daemon.open_session();
    EXPECT_EQ(code_of([&] { (void)daemon.open_session(); }), EDQUOT);
    second = Session();
    second = daemon.open_session();  // a closed session no longer counts

    const QueuePairOptions options{
        .shares = {{.session = &session, .send_depth = 64}}, .recv_depth = 64, .remote_access = RemoteAccess::all()};
    QueuePair a = daemon.create_queue_pair(options);
    QueuePair b = daemon.create_queue_pair(options);
    EXPECT_EQ(code_of([&] { (void)daemon.create_queue_pair(options); }), EDQUOT);
    b.close();
    EXPECT_EQ(code_of([&] {
                  (void)daemon.create_queue_pair({.shares = {{.session = &session, .send_depth = 173}},
                                                  .recv_depth = 0,
                                                  .remote_access = RemoteAccess::all()});
              }),
              EDQUOT);
    QueuePair c = daemon.create_queue_pair(
        {.shares = {{.session = &session, .send_depth = 172}}, .recv_depth = 0, .remote_access = RemoteAccess::all()});

    MemoryRegion memory = daemon.allocate(1000 * 1024, Access::all());
    EXPECT_EQ(code_of([&] { (void)daemon.allocate(100 * 1024, Access::all()); }), EDQUOT);
    EXPECT_EQ(code_of([&] { (void)daemon.allocate(2u << 20, Access::all()); }), EDQUOT);
    memory.deregister();
    memory = daemon.allocate(1u << 20, Access::all());

    // Each process has its own limits. A changed limit applies at once.
    Attachment other = attach();
    Session of_other = other.open_session();
    config.sessions_max = 1;
    server.configure(config);
    EXPECT_EQ(code_of([&] { (void)other.open_session(); }), EDQUOT);
}

// All processes of one user together stay within the limits of that user.
TEST_F(AttachTest, HoldsTheProcessesOfAUserToItsLimits) {
    AttachConfig config = attach_config();
    config.user_sessions_max = 3;
    config.user_clients_max = 2;
    config.user_registered_max = (1u << 20) + 3 * rings_of({});
    server.configure(config);
    Attachment one = attach();
    Attachment other = attach();
    EXPECT_EQ(code_of([&] { (void)attach(); }), ENOSPC);
    Session a = one.open_session();
    Session b = one.open_session();
    Session c = other.open_session();
    EXPECT_EQ(code_of([&] { (void)other.open_session(); }), EDQUOT);
    EXPECT_EQ(code_of([&] { (void)one.open_session(); }), EDQUOT);
    const MemoryRegion memory = one.allocate(1u << 20, Access::all());
    EXPECT_EQ(code_of([&] { (void)other.allocate(4096, Access::all()); }), EDQUOT);
    one.stop();
    b = Session();
    EXPECT_NO_THROW((void)other.open_session());
    EXPECT_NO_THROW((void)other.allocate(4096, Access::all()));
    // The place of a process is free when the thread of its connection has ended.
    int refused = ENOSPC;
    EXPECT_TRUE(test::eventually([&] { return (refused = code_of([&] { (void)attach(); })) != ENOSPC; }));
    EXPECT_EQ(refused, 0);
}

TEST_F(AttachTest, HoldsTheListenersAndPoolsOfAUserToTheirLimits) {
    AttachConfig config = attach_config();
    config.user_listeners_max = 2;
    config.user_receive_pools_max = 2;
    server.configure(config);
    Attachment one = attach();
    Attachment other = attach();
    std::vector<Listener> listeners;
    listeners.push_back(one.listen("one"));
    listeners.push_back(other.listen("other"));
    EXPECT_EQ(code_of([&] { (void)one.listen("another"); }), EDQUOT);
    listeners.pop_back();
    EXPECT_NO_THROW((void)one.listen("one-more"));

    Session its = one.open_session({.pool_buffers = 64});
    Session others = other.open_session({.pool_buffers = 64});
    const auto few = [](Session& session) {
        return ReceivePoolOptions{.session = &session, .buffers = 8, .buffer_bytes = 64};
    };
    ReceivePool first = one.create_receive_pool(few(its));
    std::optional<ReceivePool> second = other.create_receive_pool(few(others));
    EXPECT_EQ(code_of([&] { (void)other.create_receive_pool(few(others)); }), EDQUOT);
    second.reset();
    EXPECT_NO_THROW((void)one.create_receive_pool(few(its)));
}

TEST_F(AttachTest, HoldsTheSmallThingsOfAUserToTheirLimit) {
    AttachConfig config = attach_config();
    config.user_objects_max = 3;
    server.configure(config);
    Attachment one = attach();
    Attachment other = attach();
    Session session = one.open_session();
    QueuePair qp = one.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    const auto two_of_one = [&](auto&& make) {
        const auto first = make(one);
        auto second = std::optional(make(one));
        const auto third = make(other);
        EXPECT_EQ(code_of([&] { (void)make(other); }), EDQUOT);
        EXPECT_EQ(code_of([&] { (void)make(one); }), EDQUOT);
        second.reset();
        EXPECT_NO_THROW((void)make(other));
    };
    two_of_one([](Attachment& daemon) { return daemon.allocate(4096, Access::all()); });
    two_of_one([](Attachment& daemon) { return daemon.create_protection_domain(); });
    const QpInfo info = qp.info();
    two_of_one([&](Attachment& daemon) { return daemon.create_address_handle(info); });
    Session others = other.open_session();
    two_of_one([&](Attachment& daemon) { return daemon.create_memory_window(&daemon == &one ? session : others); });
}

// A connection that sends nothing keeps its place for two seconds. One user gets only a part of all places.
TEST_F(AttachTest, ConnectionsThatSayNothingKeepOutNobodyElse) {
    if (::geteuid() != 0) {
        FAIL() << "connecting as another user needs root";
    }
    AttachConfig config = attach_config();
    config.path += "-silent";
    config.mode = 0666;
    AttachServer open_to_all(runtime, config);
    std::vector<UniqueFd> silent;
    // A raw system call changes the user of this thread only; the C library's setresuid() would change all threads.
    std::thread([&] {
        ASSERT_EQ(::syscall(SYS_setresuid, -1, 65534, -1), 0);
        for (int i = 0; i < 40; ++i) {  // more than kStrangersOfOneUser
            try {
                silent.push_back(wire::connect_to(config.path));
            } catch (const Error&) {
                break;  // the kernel's queue is full for now
            }
        }
        EXPECT_EQ(code_of([&] { Attachment({.path = config.path, .timeout = 5s}); }), ENOSPC);
    }).join();
    EXPECT_TRUE(Attachment({.path = config.path, .timeout = 5s}).valid());
    EXPECT_GT(open_to_all.counts().refused, 0u);
}

// The processes of other users keep half of the objects, however high the limits of one process are.
TEST_F(AttachTest, LeavesOthersAHalfUnlessTheConfigurationSaysOtherwise) {
    Attachment greedy = attach();
    Session session = greedy.open_session();
    std::vector<SharedReceiveQueue> all;
    const int error = code_of([&] {
        for (;;) {
            all.push_back(greedy.create_shared_receive_queue({.session = &session, .depth = 1}));
        }
    });
    EXPECT_EQ(error, EDQUOT);
    EXPECT_EQ(all.size(), kSrqsMax / 2);
}

}  // namespace
}  // namespace pollcore
