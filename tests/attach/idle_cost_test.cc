// What a process that is attached and does nothing costs its daemon.
#include "attach/daemon_fixture.hpp"

#include <fstream>
#include <memory>

namespace pollcore::test {
namespace {

class IdleCostTest : public DaemonTest {};

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

struct Idle {
    explicit Idle(const std::string& path)
        : daemon({.path = path, .name = "idle", .timeout = kPatience}),
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

TEST_F(IdleCostTest, IsLessThanAMebibyteBesideItsRings) {
    constexpr std::uint64_t kProcesses = 32;
    constexpr std::uint64_t kMost = 1024 * 1024;
    config_.memory.hugepages = decltype(config_.memory)::Hugepages::never;
    config_.memory.size = 16u << 20;
    Process daemon = start_daemon();
    const auto one = std::make_unique<Idle>(socket());  // what the daemon makes for the first one only
    const std::uint64_t before = memory_of(daemon.pid());
    std::vector<std::unique_ptr<Idle>> all;
    for (std::uint64_t i = 0; i < kProcesses; ++i) {
        all.push_back(std::make_unique<Idle>(socket()));
    }
    const std::uint64_t each = (memory_of(daemon.pid()) - before) / kProcesses;
    std::printf("a process with a session, a region and two connected queue pairs takes %.0f KiB of the daemon's memory\n",
                static_cast<double>(each) / 1024);
    EXPECT_LT(each, kMost);
    EXPECT_GT(each, 0u);
}

}  // namespace
}  // namespace pollcore::test
