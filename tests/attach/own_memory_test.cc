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
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_rxe.h>

#include "attach/daemon_fixture.hpp"
#include "base/uverbs_command.hpp"
#include "native_queue_pair.hpp"
#include "patient.hpp"
#include "thread_calls.hpp"

namespace pollcore::test {
namespace {

constexpr std::size_t kBytes = 8192;

std::set<int> open_descriptors() {
    std::set<int> all;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        all.insert(std::stoi(entry.path().filename()));
    }
    return all;
}

/// The descriptors of the kernel's RDMA devices that were opened since `before`.
std::vector<int> uverbs_since(const std::set<int>& before) {
    std::vector<int> found;
    for (const int fd : open_descriptors()) {
        std::error_code none;
        const auto to = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
        if (!before.contains(fd) && to.string().find("uverbs") != std::string::npos) {
            found.push_back(fd);
        }
    }
    return found;
}

class OwnMemoryTest : public DaemonTest {
protected:
    OwnMemoryTest() {
        config_.workers[0].idle = IdlePolicy::yield;
        config_.attach.own_memory.all = true;
    }

    [[nodiscard]] AttachOptions options() const {
        AttachOptions all = patient({.path = socket()});
        all.own_memory = true;
        return all;
    }
    [[nodiscard]] std::string device() const { return config_.devices[0].verbs_name; }
    static void expect_error(int code, const std::function<void()>& call) {
        try {
            call();
            ADD_FAILURE() << "an error " << code << " was expected";
        } catch (const Error& error) {
            EXPECT_EQ(error.code().value(), code) << error.what();
        }
    }
};

/// Resizes a CQ of the daemon by the descriptor, maps the new queue, and writes over it. Returns whether that was
/// possible.
bool resize_and_overwrite(int command, std::uint32_t driver, std::uint32_t cq) {
    const ib_uverbs_resize_cq asked{.cq_handle = cq, .cqe = 512};
    ib_uverbs_resize_cq_resp answer{};
    rxe_resize_cq_resp made{};
    if (uverbs_write(driver, IB_USER_VERBS_CMD_RESIZE_CQ)
            .in(UVERBS_ATTR_CORE_IN, asked)
            .out(UVERBS_ATTR_CORE_OUT, answer)
            .out(UVERBS_ATTR_UHW_OUT, made)
            .send(command) != 0) {
        return false;
    }
    void* const queue =
        ::mmap(nullptr, made.mi.size, PROT_READ | PROT_WRITE, MAP_SHARED, command, static_cast<off_t>(made.mi.offset));
    if (queue == MAP_FAILED) {
        return false;
    }
    std::memset(queue, 0xa5, made.mi.size);
    ::munmap(queue, made.mi.size);
    return true;
}

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
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(spawned) + "/fd")) {
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

// A process does what it can by the descriptor, and only harms itself. The worker spins. It makes no system calls but
// to post to Soft-RoCE, and it never waits.
TEST_F(OwnMemoryTest, WhoDestroysTheDaemonsObjectsHarmsNobodyElse) {
    config_.workers[0].idle = IdlePolicy::spin;
    Process daemon = start_daemon();
    Witness witness(socket());
    ASSERT_TRUE(witness.checks_more_than(10));
    const pid_t worker = thread_of(daemon.pid(), "pollcore-w0");
    constexpr std::uint64_t kChecks = 300;
    const auto calls_for_checks = [&](const ThreadCalls& counted, std::uint64_t since) {
        EXPECT_TRUE(witness.checks_more_than(since + kChecks)) << daemon.err();
        EXPECT_EQ(counted.waits(), 0u);
        return static_cast<double>(counted.calls()) / static_cast<double>(witness.checked() - since);
    };
    const ThreadCalls before_attacks(worker);
    const double usual = calls_for_checks(before_attacks, witness.checked());
    ASSERT_GT(usual, 0);
    const struct {
        const char* what;
        std::uint32_t command;  // 0: all of them
    } attacks[] = {{"QP", IB_USER_VERBS_CMD_DESTROY_QP},
                   {"CQ", IB_USER_VERBS_CMD_DESTROY_CQ},
                   {"SRQ", IB_USER_VERBS_CMD_DESTROY_SRQ},
                   {"AH", IB_USER_VERBS_CMD_DESTROY_AH},
                   {"MR", IB_USER_VERBS_CMD_DEREG_MR},
                   {"PD", IB_USER_VERBS_CMD_DEALLOC_PD},
                   {"QP, by moving it to RESET", IB_USER_VERBS_CMD_MODIFY_QP},
                   {"CQ, by resizing it and writing to the new one", IB_USER_VERBS_CMD_RESIZE_CQ},
                   {"all", 0}};
    for (const auto& attack : attacks) {
        SCOPED_TRACE(attack.what);
        const std::set<int> before = open_descriptors();
        const ThreadCalls counted(worker);
        const std::uint64_t from = witness.checked();
        {
            Attachment attachment(options());
            const std::vector<int> commands = uverbs_since(before);
            ASSERT_EQ(commands.size(), 1u);
            const MemoryRegion allocated = attachment.allocate(kBytes, Access::all());
            std::vector<std::byte> heap(kBytes);
            const MemoryRegion own = attachment.register_memory(heap.data(), heap.size(), Access::all());
            Session session = attachment.open_session();
            SharedReceiveQueue srq = attachment.create_shared_receive_queue({.session = &session, .depth = 16});
            const auto shape = [&](const SharedReceiveQueue* shared) {
                return QueuePairOptions{.shares = {{.session = &session, .send_depth = 16}},
                                        .recv_depth = 16,
                                        .srq = shared,
                                        .remote_access = RemoteAccess::all()};
            };
            QueuePair a = attachment.create_queue_pair(shape(nullptr));
            QueuePair b = attachment.create_queue_pair(shape(&srq));
            const QpInfo info_a = a.info();
            const QpInfo info_b = b.info();
            a.connect(info_b);
            b.connect(info_a);
            const AddressHandle ah = attachment.create_address_handle(info_a);

            std::uint32_t driver = 0;
            while (uverbs_dereg_mr(commands[0], driver, 0xffffffff) == EINVAL) {
                ++driver;
            }
            int destroyed = 0;
            for (std::uint32_t i = 0; i < 128; ++i) {
                const std::uint32_t handle = i % 64;  // twice, because some objects are in use by others at first
                const auto destroy = [&](std::uint32_t command, const auto& body, auto&... answer) {
                    if (attack.command == command || attack.command == 0) {
                        UverbsRequest request = uverbs_write(driver, command);
                        request.in(UVERBS_ATTR_CORE_IN, body);
                        (request.out(UVERBS_ATTR_CORE_OUT, answer), ...);
                        destroyed += request.send(commands[0]) == 0;
                    }
                };
                ib_uverbs_destroy_qp_resp qp_gone{};
                ib_uverbs_destroy_srq_resp srq_gone{};
                ib_uverbs_destroy_cq_resp cq_gone{};
                ib_uverbs_modify_qp to_reset{};
                to_reset.qp_handle = handle;
                to_reset.attr_mask = IBV_QP_STATE;
                to_reset.qp_state = IBV_QPS_RESET;
                if (attack.command == IB_USER_VERBS_CMD_RESIZE_CQ) {
                    destroyed += resize_and_overwrite(commands[0], driver, handle);
                }
                destroy(IB_USER_VERBS_CMD_MODIFY_QP, to_reset);
                destroy(IB_USER_VERBS_CMD_DESTROY_QP, ib_uverbs_destroy_qp{.qp_handle = handle}, qp_gone);
                destroy(IB_USER_VERBS_CMD_DESTROY_SRQ, ib_uverbs_destroy_srq{.srq_handle = handle}, srq_gone);
                destroy(IB_USER_VERBS_CMD_DESTROY_CQ, ib_uverbs_destroy_cq{.cq_handle = handle}, cq_gone);
                destroy(IB_USER_VERBS_CMD_DESTROY_AH, ib_uverbs_destroy_ah{.ah_handle = handle});
                destroy(IB_USER_VERBS_CMD_DEREG_MR, ib_uverbs_dereg_mr{.mr_handle = handle});
                destroy(IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd{.pd_handle = handle});
            }
            // These cannot be destroyed before the queue pairs that use them.
            const bool in_use = attack.command == IB_USER_VERBS_CMD_DEALLOC_PD ||
                                attack.command == IB_USER_VERBS_CMD_DESTROY_CQ ||
                                attack.command == IB_USER_VERBS_CMD_DESTROY_SRQ;
            EXPECT_TRUE(destroyed > 0 || in_use) << "the attack does nothing";
            // Work on what is left, or is no more.
            for (int i = 0; i < 8; ++i) {
                (void)session.try_submit({.sge = allocated.sge(0, 64),
                                          .remote_addr = allocated.addr(),
                                          .rkey = allocated.rkey(),
                                          .qp = a.handle(),
                                          .opcode = Opcode::rdma_write,
                                          .flags = kSignaled,
                                          .num_sge = 1});
            }
            EXPECT_TRUE(witness.checks_more_than(witness.checked() + 100));
        }
        // The attacker's own requests, and what ends its queue pairs.
        constexpr double kAttackersCalls = 64;
        EXPECT_LE(calls_for_checks(counted, from), 2 * usual + kAttackersCalls / kChecks) << "usual: " << usual;
        EXPECT_TRUE(witness.checks_more_than(witness.checked() + 10)) << daemon.err();
        Attachment next(options());  // the daemon serves others as before
        std::vector<std::byte> heap(kBytes);
        EXPECT_TRUE(next.register_memory(heap.data(), heap.size(), Access::all()).valid());
    }
    witness.join();
    EXPECT_EQ(witness.wrong(), "");
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
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
