// Tests the messages of the attach protocol, with a server in the same process. Other tests use a daemon process, such
// as tests/conformance (POLLCORE_TEST_ATTACH) and tests/attach/kill_test.cc.
#include "pollcore/attach.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attach/attach_fixture.hpp"
#include "attach/packet_socket.hpp"
#include "attach/wire.hpp"
#include "base/unique_fd.hpp"
#include "give_way.hpp"
#include "patient.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/runtime.hpp"
#include "session/layout.hpp"
#include "system/daemon_process.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using test::AttachTest;
using test::code_of;
using test::Pair;
using test::runtime_config;

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
