// Tests the messages of the attach protocol, with a server in the same process. Other tests use a daemon process, such
// as tests/conformance (POLLCORE_TEST_ATTACH) and tests/attach/kill_test.cc.
#include "pollcore/attach.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attach/packet_socket.hpp"
#include "attach/wire.hpp"
#include "base/unique_fd.hpp"
#include "eventually.hpp"
#include "give_way.hpp"
#include "held_clock_platform.hpp"
#include "log_capture.hpp"
#include "patient.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/runtime.hpp"
#include "session/layout.hpp"
#include "system/daemon_process.hpp"
#include "test_cpus.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

Config runtime_config(IdlePolicy idle = IdlePolicy::yield) {
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    config.devices.push_back({.name = "net0", .profile = DeviceConfig::Profile::mlx5});
    config.workers.push_back({.name = "w0", .core = test::last_cpu(), .idle = idle});
    config.qps_max = 64;
    config.log_level = LogLevel::error;
    return config;
}

class AttachTest : public ::testing::Test {
protected:
    explicit AttachTest(IdlePolicy idle = IdlePolicy::yield) : AttachTest(host_platform(), idle) {}
    explicit AttachTest(std::unique_ptr<Platform> platform, IdlePolicy idle = IdlePolicy::yield)
        : runtime(runtime_config(idle), std::move(platform)), server(runtime, attach_config()) {}

    static AttachConfig attach_config() {
        AttachConfig config;
        config.path = std::filesystem::temp_directory_path() / ("pollcore-attach-" + std::to_string(::getpid()));
        return config;
    }
    [[nodiscard]] static Attachment attach() {
        return Attachment(test::patient({.path = attach_config().path, .name = "test"}));
    }

    static std::uint64_t rings_of(const SessionOptions& options) {
        return SessionLayout{runtime_config().qps_max,
                             options.submission_slots,
                             options.completion_slots,
                             options.wide_completions,
                             false,
                             options.pool_buffers}
            .bytes();
    }

    static std::vector<Completion> await(Session& session, std::size_t n) {
        std::vector<Completion> all;
        const auto deadline = std::chrono::steady_clock::now() + 10s;
        while (all.size() < n && std::chrono::steady_clock::now() < deadline) {
            Completion one;
            if (session.poll({&one, 1}) == 1) {
                all.push_back(one);
            } else {
                test::give_way();
            }
        }
        EXPECT_EQ(all.size(), n);
        return all;
    }

    Runtime runtime;
    AttachServer server;
};

/// Two queue pairs that are connected to each other.
struct Pair {
    Pair(Context& daemon, Session& session)
        : Pair(daemon, {.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()}) {}
    Pair(Context& daemon, const QueuePairOptions& options)
        : a(daemon.create_queue_pair(options)), b(daemon.create_queue_pair(options)) {
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }
    [[nodiscard]] WorkRequest write(const MemoryRegion& memory) const {
        return {.tag = 7,
                .sge = {memory.addr(), 64, memory.lkey()},
                .remote_addr = memory.addr() + 4096,
                .rkey = memory.rkey(),
                .qp = a.handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }
    Refusal write(Session& session, const MemoryRegion& memory) const { return session.try_submit(write(memory)); }
    QueuePair a;
    QueuePair b;
};

TEST_F(AttachTest, AnAttachedProcessWritesAndReadsAsAnEmbeddedOne) {
    Attachment daemon = attach();
    Session session = daemon.open_session();
    MemoryRegion memory = daemon.allocate(8192, Access::all());
    const Pair pair(daemon, session);
    memory.data()[0] = std::byte{42};
    ASSERT_EQ(pair.write(session, memory), Refusal::none);
    const std::vector<Completion> done = await(session, 1);
    EXPECT_EQ(done.at(0).status, Status::success);
    EXPECT_EQ(done.at(0).tag, 7u);
    EXPECT_EQ(memory.data()[4096], std::byte{42});
    EXPECT_EQ(server.counts().now, 1u);
}

TEST_F(AttachTest, TheSignalsOfItsQueuePairsCanBeCoalesced) {
    Attachment daemon = attach();
    Session session = daemon.open_session();
    MemoryRegion memory = daemon.allocate(8192, Access::all());
    const QueuePairOptions options{
        .shares = {{.session = &session}}, .remote_access = RemoteAccess::all(), .coalesce_signals = true};
    const Pair pair(daemon, options);
    constexpr std::uint64_t kBurst = 16;
    std::vector<WorkRequest> burst(kBurst, pair.write(memory));
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        burst[tag].tag = tag;
    }
    ASSERT_EQ(session.try_submit(burst).accepted, kBurst);
    const std::vector<Completion> done = await(session, kBurst);
    for (std::uint64_t tag = 0; tag < kBurst; ++tag) {
        EXPECT_EQ(done.at(tag).tag, tag);
        EXPECT_TRUE(done.at(tag).ok());
    }
    EXPECT_LT(runtime.worker_counters(0).completions.value(), kBurst);
}

int code_of(const std::function<void()>& call) {
    try {
        call();
        return 0;
    } catch (const Error& error) {
        return error.code().value();
    }
}

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

// The library in a process refuses such names. This process does without it.
TEST_F(AttachTest, NamesOfSessionsAndQueuePairsAreCheckedByTheDaemonToo) {
    const UniqueFd socket = wire::connect_to(attach_config().path);
    const auto ask = [&]<class Body>(const Body& body) {
        wire::Request<Body> request;
        std::memset(static_cast<void*>(&request), 0, sizeof(request));
        request.header = {.kind = Body::kKind, .id = 1};
        request.body = body;
        EXPECT_EQ(wire::send_packet(socket.get(), std::as_bytes(std::span(&request, 1)), {}), 0);
        pollfd readable{.fd = socket.get(), .events = POLLIN, .revents = 0};
        EXPECT_EQ(::poll(&readable, 1, 20'000), 1);
        wire::Packet packet;
        EXPECT_EQ(wire::recv_packet(socket.get(), packet), 0);
        wire::Answer<typename Body::Answered> answer;
        EXPECT_TRUE(packet.read(answer));
        return answer.outcome;
    };
    EXPECT_EQ(ask(wire::Attach{.name = NameText("no library")}).error, 0);
    const NameText forged("a\", uid 0)\n\x1b[2J");
    const NameText too_long(std::string(kNameLengthMax + 1, 'n'));
    for (const NameText& name : {forged, too_long}) {
        const wire::Outcome session = ask(
            wire::OpenSession{.bytes = rings_of({}), .submission_slots = 1024, .completion_slots = 1024, .name = name});
        const wire::Outcome qp = ask(wire::CreateQp{.spec = {.share_count = 1, .shares = {}, .name = name}});
        for (const wire::Outcome& outcome : {session, qp}) {
            EXPECT_EQ(outcome.error, EINVAL);
            const std::string said = name.view().size() > kNameLengthMax ? std::string(kNameLengthMax, 'n') + "\"..."
                                                                         : R"(a\", uid 0)\x0a\x1b[2J")";
            EXPECT_TRUE(outcome.text.view().starts_with("name = \"" + said + ": accepted is up to 63"))
                << outcome.text.view();
        }
    }
}

TEST_F(AttachTest, OfOneSocketThereIsOneServer) {
    EXPECT_EQ(code_of([&] { AttachServer second(runtime, attach_config()); }), EADDRINUSE);
    EXPECT_EQ(code_of([] { Attachment nowhere({.path = "/tmp/pollcore-nobody-is-here"}); }), ENOENT);
    EXPECT_EQ(code_of([] { Attachment nowhere({.path = std::string(200, 'x')}); }), ENAMETOOLONG);
}

TEST_F(AttachTest, WhatIsLeftOfAServerThatWasKilledIsReplaced) {
    AttachConfig config = attach_config();
    config.path += "-left";
    {
        sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
        std::strncpy(address.sun_path, config.path.c_str(), sizeof(address.sun_path) - 1);
        const UniqueFd left(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
        ASSERT_EQ(::bind(left.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    }
    AttachServer again(runtime, config);
    EXPECT_TRUE(Attachment({.path = config.path}).valid());
    AttachConfig file = config;
    file.path += "-file";
    std::ofstream(file.path) << "no socket";
    EXPECT_EQ(code_of([&] { AttachServer never(runtime, file); }), EEXIST);
    EXPECT_TRUE(std::filesystem::exists(file.path));
    std::filesystem::remove(file.path);
}

TEST_F(AttachTest, IsForTheUsersAndGroupsOfTheConfiguration) {
    AttachConfig config = attach_config();
    config.path += "-users";
    const std::string other = std::to_string(::getuid() + 1);
    config.users = {other};
    config.groups = {std::to_string(::getgid() + 100'000)};
    {
        AttachServer others(runtime, config);
        EXPECT_EQ(code_of([&] { Attachment refused({.path = config.path}); }), EACCES);
        EXPECT_EQ(others.counts().refused, 1u);
        EXPECT_EQ(others.counts().attached, 0u);
    }
    config.users = {other, std::to_string(::getuid())};
    {
        AttachServer ours(runtime, config);
        EXPECT_TRUE(Attachment({.path = config.path}).valid());
    }
    config.users = {other};
    config.groups = {std::to_string(::getgid())};
    AttachServer by_group(runtime, config);
    EXPECT_TRUE(Attachment({.path = config.path}).valid());
    config.path += "-unknown";
    config.users = {"no-such-user-here"};
    EXPECT_EQ(code_of([&] { AttachServer never(runtime, config); }), EINVAL);
}

TEST_F(AttachTest, HasTheModeOfTheConfiguration) {
    AttachConfig config = attach_config();
    config.path += "-mode";
    config.mode = 0620;
    AttachServer server_of_mode(runtime, config);
    struct stat status {};
    ASSERT_EQ(::stat(config.path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0620u);
}

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

TEST_F(AttachTest, WhoMayAttachCanChangeAndEndsThoseWhoMayNoMore) {
    Attachment daemon = attach();
    AttachConfig config = attach_config();
    config.users = {"no-such-user-here"};
    EXPECT_EQ(code_of([&] { server.configure(config); }), EINVAL);
    EXPECT_NO_THROW((void)daemon.open_session()) << "nothing has changed";
    config.users = {std::to_string(::getuid() + 1)};
    server.configure(config);
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (!daemon.lost() && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(daemon.lost());
    EXPECT_EQ(code_of([&] { (void)attach(); }), EACCES);
    config.users.clear();
    server.configure(config);
    EXPECT_NO_THROW((void)attach());
}

TEST_F(AttachTest, ProcessesReachNothingOfEachOther) {
    Attachment one = attach();
    Attachment other = attach();
    Session session = one.open_session();
    Session of_other = other.open_session();
    MemoryRegion memory = one.allocate(4096, Access::all());
    MemoryRegion of_others = other.allocate(4096, Access::all());
    QueuePair a = one.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    QueuePair b = one.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    const QpInfo info = a.info();
    a.connect(b.info());
    b.connect(info);
    const auto write = [&](Session& from, const Sge& sge, std::uint64_t addr, std::uint32_t rkey) {
        EXPECT_EQ(from.try_submit({.sge = sge,
                                   .remote_addr = addr,
                                   .rkey = rkey,
                                   .qp = a.handle(),
                                   .opcode = Opcode::rdma_write,
                                   .flags = kSignaled,
                                   .num_sge = 1}),
                  Refusal::none);
        return await(from, 1).at(0).status;
    };
    EXPECT_EQ(write(session, {memory.addr(), 8, memory.lkey()}, memory.addr() + 64, memory.rkey()), Status::success);
    // The session of another process does not know the queue pair.
    EXPECT_EQ(
        of_other.try_submit(
            {.sge = {of_others.addr(), 8, of_others.lkey()}, .qp = a.handle(), .opcode = Opcode::send, .num_sge = 1}),
        Refusal::stale_handle);
    // A process cannot make a queue pair for another process's session. It cannot name that process's pool or reach its
    // memory.
    EXPECT_EQ(
        code_of([&] {
            (void)one.create_queue_pair({.shares = {{.session = &of_other}}, .remote_access = RemoteAccess::all()});
        }),
        EINVAL);
    Session with_pools = one.open_session({.pool_buffers = 16});
    Session of_other_with_pools = other.open_session({.pool_buffers = 8});
    const ReceivePool pool = one.create_receive_pool({.session = &with_pools, .buffers = 8, .buffer_bytes = 64});
    const ReceivePool others_pool = other.create_receive_pool({.session = &of_other_with_pools, .buffers = 8});
    QueuePairOptions options{
        .shares = {{.session = &with_pools}}, .recv_depth = 4, .pool = &others_pool, .flow = FlowControl::credits};
    EXPECT_EQ(code_of([&] { (void)one.create_queue_pair(options); }), EINVAL);
    options.pool = &pool;
    options.rendezvous_pool = &others_pool;
    EXPECT_EQ(code_of([&] { (void)one.create_queue_pair(options); }), EINVAL);
    EXPECT_NE(write(session, {of_others.addr(), 8, of_others.lkey()}, memory.addr(), memory.rkey()), Status::success);
}

TEST_F(AttachTest, IsThereForProgramsInCToo) {
    const test::TemporaryDirectory directory;
    test::Process client(
        {std::filesystem::read_symlink("/proc/self/exe").parent_path() / "c-client", attach_config().path}, {},
        directory.path());
    EXPECT_EQ(client.wait(), 0) << client.err();
    EXPECT_EQ(client.out(), "ok\n");
}

TEST(SessionLayout, IsKnownWhenAllOfItIsThereAndNotForAnotherOne) {
    const SessionLayout layout{16, 64, 64, false, false, 0};
    OwnLines<std::byte> block(layout.bytes());
    EXPECT_FALSE(is_formatted(block.data(), layout));
    format_session(block.data(), layout);
    EXPECT_TRUE(is_formatted(block.data(), layout));
    EXPECT_FALSE(is_formatted(block.data(), {16, 64, 128, false, false, 0}));
    EXPECT_FALSE(is_formatted(block.data(), {16, 64, 64, true, false, 0}));
    session_header(block.data())->version = SessionHeader::kVersion + 1;
    EXPECT_FALSE(is_formatted(block.data(), layout));
}

TEST_F(AttachTest, AProcessOfAnotherVersionIsToldSo) {
    const UniqueFd socket = wire::connect_to(attach_config().path);
    wire::Request<wire::Attach> request{{.version = wire::kVersion + 1, .kind = wire::Kind::attach, .id = 1}, {}};
    ASSERT_EQ(wire::send_packet(socket.get(), std::as_bytes(std::span(&request, 1)), {}), 0);
    pollfd readable{.fd = socket.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&readable, 1, 5000), 1);
    wire::Packet packet;
    ASSERT_EQ(wire::recv_packet(socket.get(), packet), 0);
    wire::Answer<wire::Attached> answer;
    ASSERT_TRUE(packet.read(answer));
    EXPECT_EQ(answer.outcome.error, EPROTO);
    EXPECT_EQ(answer.outcome.text.string(),
              fmt::format("this daemon speaks version {} of the attach protocol, and the process {}", wire::kVersion,
                          wire::kVersion + 1));
    // The daemon then closes the connection.
    ASSERT_EQ(::poll(&readable, 1, 5000), 1);
    EXPECT_EQ(wire::recv_packet(socket.get(), packet), EPIPE);
}

// The library in the process refuses a session with time stamps but without wide completions. It does not ask the
// daemon.
TEST_F(AttachTest, ASessionWithTimeStampsNeedsWideCompletions) {
    Attachment daemon = attach();
    EXPECT_EQ(code_of([&] { (void)daemon.open_session({.device_time = true}); }), EINVAL);
    const DeviceReport here = runtime.report().devices.at(0);
    const DeviceReport there = daemon.report().devices.at(0);
    EXPECT_NE(here.completion_timestamp_mask, 0u);
    EXPECT_EQ(there.completion_timestamp_mask, here.completion_timestamp_mask);
    EXPECT_EQ(there.hca_core_clock_khz, here.hca_core_clock_khz);
}

TEST(AttachWithoutAClock, QueuePairsThatWantTimeStampsAreRefusedAndOthersAreNot) {
    Config config = runtime_config();
    config.devices[0].profile = DeviceConfig::Profile::rxe;
    Runtime runtime(config);
    AttachConfig attach;
    attach.path = std::filesystem::temp_directory_path() / ("pollcore-timeless-" + std::to_string(::getpid()));
    const AttachServer server(runtime, attach);
    Attachment daemon(test::patient({.path = attach.path}));
    EXPECT_EQ(daemon.report().devices.at(0).completion_timestamp_mask, 0u);
    Session timed = daemon.open_session({.wide_completions = true, .device_time = true});
    Session other = daemon.open_session({.wide_completions = true});
    try {
        (void)daemon.create_queue_pair(
            {.shares = {{.session = &other}, {.session = &timed}}, .remote_access = RemoteAccess::all()});
        ADD_FAILURE() << "it was made";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), EOPNOTSUPP);
        EXPECT_NE(std::strstr(error.what(), "have no time stamps"), nullptr) << error.what();
    }
    const QueuePair without =
        daemon.create_queue_pair({.shares = {{.session = &other}}, .remote_access = RemoteAccess::all()});
    EXPECT_TRUE(without.valid());
}

TEST_F(AttachTest, WhoIsToldThatTheServerStopsFinishesAndDetaches) {
    Attachment daemon = attach();
    Session session = daemon.open_session();
    MemoryRegion memory = daemon.allocate(8192, Access::all());
    Pair pair(daemon, session);
    constexpr auto kPatience = 20s;
    std::future<bool> stopped = std::async(std::launch::async, [&] { return server.stop(2 * kPatience); });
    const std::optional<Event> event = daemon.next_event(kPatience);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->type, EventType::stopping);
    EXPECT_EQ(event_type_name(event->type), "POLLCORE_EVENT_STOPPING");
    EXPECT_EQ(code_of([] { Attachment late({.path = attach_config().path}); }), ESHUTDOWN);
    // The process can still finish its work.
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(pair.write(session, memory), Refusal::none);
        ASSERT_TRUE(await(session, 1).at(0).ok());
    }
    EXPECT_TRUE(daemon.stop());
    EXPECT_EQ(stopped.wait_for(kPatience), std::future_status::ready) << "nobody waits for those that have gone";
    EXPECT_TRUE(stopped.get());
    EXPECT_EQ(server.counts().detached, 1u);
}

TEST_F(AttachTest, WhoStaysWhenTheServerStopsIsEndedWithACompletionForEachRequest) {
    Attachment daemon = attach();
    Session session = daemon.open_session();
    MemoryRegion memory = daemon.allocate(8192, Access::all());
    Pair pair(daemon, session);
    constexpr std::uint64_t kReceives = 20;
    for (std::uint64_t tag = 0; tag < kReceives; ++tag) {
        ASSERT_EQ(session.try_submit({.tag = tag,
                                      .sge = {memory.addr(), 64, memory.lkey()},
                                      .qp = pair.b.handle(),
                                      .opcode = Opcode::recv,
                                      .num_sge = 1}),
                  Refusal::none);
    }
    EXPECT_TRUE(server.stop(300ms)) << "all is flushed";
    const std::optional<Event> event = daemon.next_event(20s);
    ASSERT_TRUE(event) << "it was told before it was ended";
    EXPECT_EQ(event->type, EventType::stopping);
    const std::vector<Completion> ended = await(session, kReceives);
    for (std::uint64_t tag = 0; tag < kReceives; ++tag) {
        EXPECT_EQ(ended.at(tag).tag, tag);
        EXPECT_EQ(ended.at(tag).status, Status::wr_flush_err);
    }
    EXPECT_EQ(session.figures().in_flight(), 0u);
    EXPECT_NE(session.try_submit({.qp = pair.a.handle(), .opcode = Opcode::send}), Refusal::none);
    for (const auto until = std::chrono::steady_clock::now() + 20s; !daemon.lost();) {
        ASSERT_LT(std::chrono::steady_clock::now(), until) << "its reader was not told";
        test::give_way();
    }
    EXPECT_EQ(server.counts().now, 0u);
}

TEST_F(AttachTest, ARuntimeMayStopBeforeItsServerDoes) {
    Attachment daemon = attach();
    Session session = daemon.open_session();
    MemoryRegion memory = daemon.allocate(8192, Access::all());
    Pair pair(daemon, session);
    ASSERT_EQ(session.try_submit({.tag = 3,
                                  .sge = {memory.addr(), 64, memory.lkey()},
                                  .qp = pair.b.handle(),
                                  .opcode = Opcode::recv,
                                  .num_sge = 1}),
              Refusal::none);
    EXPECT_TRUE(runtime.stop());
    EXPECT_EQ(await(session, 1).at(0).status, Status::wr_flush_err);
    EXPECT_EQ(code_of([&] { (void)daemon.allocate(4096, Access::all()); }), ESHUTDOWN);
    EXPECT_EQ(code_of([&] { (void)daemon.open_session(); }), ESHUTDOWN);
    EXPECT_TRUE(daemon.stop());
    EXPECT_TRUE(server.stop(0ms));
}

TEST_F(AttachTest, PartsOfMemoryCountAsLongAsOneIsThere) {
    constexpr std::size_t kBytes = 512 * 1024;
    AttachConfig config = attach_config();
    config.registered_max = kBytes;
    server.configure(config);
    Attachment daemon = attach();
    for (int i = 0; i < 3; ++i) {
        std::optional<MemoryRegion> whole = daemon.allocate(kBytes, Access::all());
        std::optional<MemoryRegion> part = daemon.register_memory(whole->data(), kBytes / 2, Access::all());
        EXPECT_EQ(code_of([&] { (void)daemon.allocate(4096, Access::all()); }), EDQUOT);
        whole.reset();
        EXPECT_EQ(code_of([&] { (void)daemon.allocate(4096, Access::all()); }), EDQUOT) << "its part keeps all of it";
        part.reset();
    }
}

TEST_F(AttachTest, WhatDetachesLeavesNothing) {
    {
        Attachment daemon = attach();
        Session session = daemon.open_session();
        MemoryRegion memory = daemon.allocate(8192, Access::all());
        QueuePair a =
            daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
        EXPECT_TRUE(daemon.stop());
        EXPECT_THROW((void)daemon.open_session(), Error);
    }
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    while (server.counts().now != 0 && std::chrono::steady_clock::now() < deadline) {
        test::give_way();
    }
    EXPECT_EQ(server.counts().now, 0u);
    EXPECT_EQ(server.counts().detached, 1u);
    EXPECT_EQ(server.counts().died, 0u);
}

}  // namespace
}  // namespace pollcore
