// Memory that an attached process registers itself, at a device that has a kernel behind it (Soft-RoCE in the guest).
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "attach/own_memory_fixture.hpp"
#include "eventually.hpp"
#include "native_queue_pair.hpp"

namespace pollcore::test {
namespace {

/// An attached process's side, and a peer of plain libibverbs that is connected to it.
struct Ends {
    Ends(const AttachOptions& options, const std::string& device)
        : daemon(options),
          session(daemon.open_session()),
          qp(daemon.create_queue_pair({.shares = {{.session = &session, .send_depth = 16}},
                                       .recv_depth = 16,
                                       .remote_access = RemoteAccess::all()})),
          peer(device, QpType::rc) {
        QpInfo info = qp.info();
        std::uint8_t index = 0;
        for (const GidAttributes& gid : daemon.gids()) {
            index = gid.gid == info.gid ? static_cast<std::uint8_t>(gid.gid_index) : index;
        }
        qp.connect(peer.info(info));
        peer.connect(info, index);
    }
    [[nodiscard]] Completion await() {
        Completion completion;
        while (session.poll({&completion, 1}) == 0) {
            give_way();
        }
        return completion;
    }
    [[nodiscard]] Status write_from(const MemoryRegion& region) {
        EXPECT_EQ(session.try_submit({.sge = region.sge(0, 64),
                                      .remote_addr = reinterpret_cast<std::uintptr_t>(peer.memory.data()),
                                      .rkey = peer.rkey(),
                                      .qp = qp.handle(),
                                      .opcode = Opcode::rdma_write,
                                      .flags = kSignaled,
                                      .num_sge = 1}),
                  Refusal::none);
        return await().status;
    }
    [[nodiscard]] ibv_wc_status write_into(const MemoryRegion& region) {
        peer.post_send(IBV_WR_RDMA_WRITE, 64, region.addr(), region.rkey());
        return peer.poll().status;
    }
    void expect_both_ways(const MemoryRegion& region, std::byte* data) {
        std::memset(data, 0x31, 64);
        EXPECT_EQ(write_from(region), Status::success);
        EXPECT_EQ(std::memcmp(data, peer.memory.data(), 64), 0);
        std::memset(peer.memory.data(), 0x42, 64);
        EXPECT_EQ(write_into(region), IBV_WC_SUCCESS);
        EXPECT_EQ(std::memcmp(data, peer.memory.data(), 64), 0);
    }

    Attachment daemon;
    Session session;
    QueuePair qp;
    NativeQueuePair peer;
};

TEST_F(OwnMemoryTest, IsRegisteredWhereverItLies) {
    Process daemon = start_daemon();
    Ends ends(options(), device());
    std::byte on_stack[256];
    static std::byte in_static[256];
    const auto heap = std::make_unique<std::byte[]>(90000);
    void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    constexpr std::size_t kHuge = 2 << 20;
    void* const huge = ::mmap(nullptr, kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    ASSERT_NE(huge, MAP_FAILED) << "this test needs a hugepage of 2 MiB";
    const struct {
        const char* what;
        std::byte* data;
        std::size_t bytes;
    } all[] = {{"stack", on_stack, sizeof(on_stack)},
               {"static", in_static, sizeof(in_static)},
               {"heap", heap.get() + 13, 80000},
               {"shared mapping", static_cast<std::byte*>(mapped), kBytes},
               {"hugepage", static_cast<std::byte*>(huge), kHuge}};
    for (const auto& one : all) {
        SCOPED_TRACE(one.what);
        MemoryRegion region = ends.daemon.register_memory(one.data, one.bytes, Access::all());
        ends.expect_both_ways(region, one.data);
        MemoryRegion again = ends.daemon.register_memory(one.data, one.bytes, Access::all());
        region.deregister();
        ends.expect_both_ways(again, one.data);
    }
    {
        const MemoryRegion allocated = ends.daemon.allocate(kBytes, Access::all());
        ends.expect_both_ways(allocated, allocated.data());
    }
    ::munmap(mapped, kBytes);
    ::munmap(huge, kHuge);
    EXPECT_TRUE(ends.daemon.stop());
}

TEST_F(OwnMemoryTest, OfADomainOfItsOwn) {
    Process daemon = start_daemon();
    Attachment attachment(options());
    const ProtectionDomain pd = attachment.create_protection_domain();
    std::vector<std::byte> heap(kBytes);
    const MemoryRegion in_domain = attachment.register_memory(heap.data(), heap.size(), Access::all(), "", &pd);
    const MemoryRegion in_default = attachment.register_memory(heap.data(), heap.size(), Access::all());
    EXPECT_NE(in_domain.lkey(), in_default.lkey());
}

TEST_F(OwnMemoryTest, ThatIsDeregisteredIsReachedByNobody) {
    Process daemon = start_daemon();
    Ends ends(options(), device());
    std::vector<std::byte> heap(kBytes);
    MemoryRegion region = ends.daemon.register_memory(heap.data(), heap.size(), Access::all());
    const std::uint32_t rkey = region.rkey();
    EXPECT_EQ(ends.session.try_submit(
                  {.tag = 1, .sge = region.sge(0, 64), .qp = ends.qp.handle(), .opcode = Opcode::recv, .num_sge = 1}),
              Refusal::none);
    expect_error(EBUSY, [&] { region.deregister(); });  // a receive names it
    ends.peer.post_send(IBV_WR_SEND, 64);
    EXPECT_EQ(ends.peer.poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(ends.await().status, Status::success);
    region.deregister();
    ends.peer.post_send(IBV_WR_RDMA_WRITE, 64, reinterpret_cast<std::uintptr_t>(heap.data()), rkey);
    EXPECT_EQ(ends.peer.poll().status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(OwnMemoryTest, NeedsTheOperatorsPermissionAndTheProcesssLimit) {
    config_.attach.own_memory = {};
    {
        Process daemon = start_daemon();
        expect_error(EPERM, [&] { Attachment attachment(options()); });
        Attachment plain(patient({.path = socket()}));
        std::vector<std::byte> heap(kBytes);
        expect_error(EOPNOTSUPP, [&] { (void)plain.register_memory(heap.data(), heap.size(), Access::all()); });
    }
    config_.attach.own_memory.users = {"65534"};
    {
        Process daemon = start_daemon();
        expect_error(EPERM, [&] { Attachment attachment(options()); });
    }
    config_.attach.own_memory.users = {std::to_string(::getuid())};
    Process daemon = start_daemon();
    Attachment attachment(options());
    expect_error(EOPNOTSUPP, [&] {
        std::vector<std::byte> heap(kBytes);
        Access access = Access::all();
        access.window_bind = true;
        (void)attachment.register_memory(heap.data(), heap.size(), access);
    });
}

// The worker must learn of the events of each process's device.
TEST_F(OwnMemoryTest, AWorkerThatSleepsServesIt) {
    config_.workers[0].idle = IdlePolicy::event;
    Process daemon = start_daemon();
    for (int round = 0; round < 2; ++round) {
        Ends one(options(), device());
        Ends other(options(), device());
        for (Ends* ends : {&one, &other, &one}) {
            std::vector<std::byte> heap(kBytes);
            const MemoryRegion region = ends->daemon.register_memory(heap.data(), heap.size(), Access::all());
            ends->expect_both_ways(region, heap.data());
            std::this_thread::sleep_for(20ms);  // the worker falls asleep
            EXPECT_EQ(ends->session.try_submit({.tag = 1,
                                                .sge = region.sge(0, 64),
                                                .qp = ends->qp.handle(),
                                                .opcode = Opcode::recv,
                                                .num_sge = 1}),
                      Refusal::none);
            std::this_thread::sleep_for(20ms);
            ends->peer.post_send(IBV_WR_SEND, 64);  // its completion alone can wake the worker
            EXPECT_EQ(ends->peer.poll().status, IBV_WC_SUCCESS);
            EXPECT_EQ(ends->await().status, Status::success);
        }
    }
}

// The kernel keeps the daemon's queue pairs as long as anybody has a copy of the descriptor.
TEST_F(OwnMemoryTest, AfterTheDaemonsDeathNoWriteReachesIt) {
    Process daemon = start_daemon();
    Ends ends(options(), device());
    std::vector<std::byte> heap(kBytes);
    const MemoryRegion region = ends.daemon.register_memory(heap.data(), heap.size(), Access::all());
    EXPECT_EQ(ends.session.try_submit(
                  {.tag = 1, .sge = region.sge(0, 64), .qp = ends.qp.handle(), .opcode = Opcode::recv, .num_sge = 1}),
              Refusal::none);
    ends.expect_both_ways(region, heap.data() + 0);

    // Children that have a copy: one by a raw fork, without the handlers of pthread_atfork(3), which is then stopped;
    // and one by posix_spawn(3), where close-on-exec closes it.
    const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (child == 0) {
        for (;;) {
            ::pause();
        }
    }
    ASSERT_GT(child, 0);
    ASSERT_EQ(::kill(child, SIGSTOP), 0);
    pid_t spawned = 0;
    const char* const arguments[] = {"/bin/sleep", "60", nullptr};
    ASSERT_EQ(::posix_spawn(&spawned, arguments[0], nullptr, nullptr, const_cast<char* const*>(arguments), environ), 0);
    // The kernel closes the descriptors before it gives the process its new name.
    const std::filesystem::path process = "/proc/" + std::to_string(spawned);
    ASSERT_TRUE(eventually([&] { return read_file(process / "comm") == "sleep\n"; }));
    for (const auto& entry : std::filesystem::directory_iterator(process / "fd")) {
        std::error_code none;
        EXPECT_EQ(std::filesystem::read_symlink(entry.path(), none).string().find("uverbs"), std::string::npos);
    }

    daemon.signal(SIGKILL);
    EXPECT_EQ(ends.await().status, Status::daemon_gone);
    std::memset(heap.data(), 0, heap.size());
    std::memset(ends.peer.memory.data(), 0x77, 64);
    EXPECT_NE(ends.write_into(region), IBV_WC_SUCCESS);
    EXPECT_EQ(heap[0], std::byte{0}) << "a write came after the completion";

    ::kill(child, SIGKILL);
    ::kill(spawned, SIGKILL);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(::waitpid(spawned, nullptr, 0), spawned);
}

TEST_F(OwnMemoryTest, AForkedChildHasNoCopyOfTheDescriptor) {
    Process daemon = start_daemon();
    const std::set<int> before = open_descriptors();
    Attachment attachment(options());
    const std::vector<int> commands = uverbs_since(before);
    ASSERT_EQ(commands.size(), 1u);
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(::fcntl(commands[0], F_GETFD) < 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    std::vector<std::byte> heap(kBytes);
    EXPECT_TRUE(attachment.register_memory(heap.data(), heap.size(), Access::all()).valid());
}

TEST_F(OwnMemoryTest, AWriteRingTakesMemoryOfTheDaemonsSight) {
    Process daemon = start_daemon();
    Attachment attachment(options());
    Session session = attachment.open_session({.pool_buffers = 65});
    // A write ring allocates its memory itself, by the daemon, so that the worker can map it.
    const ReceivePool ring = attachment.create_write_ring({.session = &session, .bytes = 1 << 16, .messages = 64});
    EXPECT_TRUE(ring.valid());
}

// A process that is killed leaves its regions behind, and the daemon ends them with the context.
TEST_F(OwnMemoryTest, TheDaemonOutlivesAProcessThatIsKilled) {
    Process daemon = start_daemon();
    for (int round = 0; round < 3; ++round) {
        int ready[2];
        ASSERT_EQ(::pipe(ready), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            Attachment attachment(options());
            std::vector<std::byte> heap(kBytes);
            const MemoryRegion region = attachment.register_memory(heap.data(), heap.size(), Access::all());
            Session session = attachment.open_session();
            const QueuePair qp = attachment.create_queue_pair({.shares = {{.session = &session}}});
            (void)!::write(ready[1], "x", 1);
            ::pause();
        }
        char one = 0;
        ASSERT_EQ(::read(ready[0], &one, 1), 1);
        ::close(ready[0]);
        ::close(ready[1]);
        ::kill(child, SIGKILL);
        ASSERT_EQ(::waitpid(child, nullptr, 0), child);
        Attachment next(options());
        const auto until = Clock::now() + 20s;
        while (next.control_counters().queue_pairs.value() != 0 && Clock::now() < until) {
            std::this_thread::sleep_for(5ms);
        }
        EXPECT_EQ(next.control_counters().queue_pairs.value(), 0u) << daemon.err();
    }
}

}  // namespace
}  // namespace pollcore::test
