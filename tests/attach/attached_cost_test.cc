// What attaching costs: a process its time, until its first completion; and the daemon its memory, for one that does nothing.
#include "attach/daemon_fixture.hpp"

#include <fstream>
#include <memory>

namespace pollcore::test {
namespace {

class AttachedCostTest : public DaemonTest {};

/// Of its own: what it shares with others, such as the rings, is counted elsewhere. In bytes.
std::uint64_t memory_of(pid_t pid) {
    std::ifstream rollup("/proc/" + std::to_string(pid) + "/smaps_rollup");
    for (std::string word; rollup >> word;) {
        if (word == "Anonymous:") {
            std::uint64_t kib = 0;
            rollup >> kib;
            return kib * 1024;
        }
    }
    ADD_FAILURE() << "the kernel does not say what memory " << pid << " has";
    return 0;
}

/// Connected with itself.
struct Attached {
    explicit Attached(const std::string& path)
        : daemon({.path = path, .name = "cost", .timeout = kPatience}),
          session(daemon.open_session()),
          memory(daemon.allocate(64 * 1024)),
          a(daemon.create_queue_pair({.shares = {{.session = &session}}})),
          b(daemon.create_queue_pair({.shares = {{.session = &session}}})) {
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }
    Attachment daemon;
    Session session;
    MemoryRegion memory;
    QueuePair a;
    QueuePair b;
};

TEST_F(AttachedCostTest, TheFirstCompletionIsThereSoon) {
    constexpr int kTimes = 9;
    Process daemon = start_daemon();
    const Attached there(socket());  // so is the daemon
    std::vector<double> milliseconds;
    for (int i = 0; i < kTimes; ++i) {
        const auto began = Clock::now();
        Attached one(socket());
        ASSERT_EQ(one.session.try_submit({.sge = {one.memory.addr(), 8, one.memory.lkey()},
                                          .remote_addr = one.memory.addr() + 64,
                                          .rkey = one.memory.rkey(),
                                          .qp = one.a.handle(),
                                          .opcode = Opcode::rdma_write,
                                          .flags = kSignaled,
                                          .num_sge = 1}),
                  Refusal::none);
        Completion completion;
        while (one.session.poll({&completion, 1}) == 0) {
            ASSERT_LT(Clock::now() - began, kPatience);
            sched_yield();
        }
        EXPECT_TRUE(completion.ok());
        milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - began).count());
    }
    std::sort(milliseconds.begin(), milliseconds.end());
    std::printf("from attaching to the first completion: %.1f ms (%.1f to %.1f)\n", milliseconds[kTimes / 2], milliseconds.front(),
                milliseconds.back());
    EXPECT_LT(milliseconds[kTimes / 2], 50);
}

TEST_F(AttachedCostTest, AnIdleProcessTakesLessThanAMebibyteBesideItsRings) {
    constexpr std::uint64_t kProcesses = 32;
    constexpr std::uint64_t kMost = 1024 * 1024;
    config_.memory.hugepages = decltype(config_.memory)::Hugepages::never;
    config_.memory.size = 16u << 20;
    config_.attach.user_clients_max = kProcesses + 1;
    Process daemon = start_daemon();
    const auto one = std::make_unique<Attached>(socket());  // what the daemon makes for the first one only
    const std::uint64_t before = memory_of(daemon.pid());
    std::vector<std::unique_ptr<Attached>> all;
    for (std::uint64_t i = 0; i < kProcesses; ++i) {
        all.push_back(std::make_unique<Attached>(socket()));
    }
    const std::uint64_t each = (memory_of(daemon.pid()) - before) / kProcesses;
    std::printf("a process with a session, a region and two connected queue pairs takes %.0f KiB of the daemon's memory\n",
                static_cast<double>(each) / 1024);
    EXPECT_LT(each, kMost);
    EXPECT_GT(each, 0u);
}

}  // namespace
}  // namespace pollcore::test
