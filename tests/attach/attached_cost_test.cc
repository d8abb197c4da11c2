// The cost of attaching: the number of requests that a process sends to the daemon before its first completion, and the
// daemon's memory for a process that does nothing.
#include <fstream>
#include <memory>

#include "attach/attached_pair.hpp"
#include "attach/counting_relay.hpp"
#include "attach/daemon_fixture.hpp"
#include "give_way.hpp"

namespace pollcore::test {
namespace {

class AttachedCostTest : public DaemonTest {};

/// Private memory of a process, in bytes. Memory that it shares with others, such as the rings, is not counted.
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

// Each request is a round trip to the daemon. Posting and polling send no requests to the daemon.
TEST_F(AttachedCostTest, UntilItsFirstCompletionAProcessAsksTenTimes) {
    Process daemon = start_daemon();
    const AttachedPair there(socket());  // makes sure that the daemon is ready
    const std::string path = (directory_.path() / "relay.sock").string();
    const CountingRelay relay(path, socket());
    AttachedPair one(path);
    EXPECT_EQ(relay.requests(), 10u) << "attach, events of connections, session, memory, and for each queue pair: "
                                        "create it, what a peer needs to know, connect";
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(one.submit(), Refusal::none);
        Completion completion;
        for (const auto until = Clock::now() + kPatience; one.session.poll({&completion, 1}) == 0;) {
            ASSERT_LT(Clock::now(), until) << "nothing completes";
            test::give_way();
        }
        ASSERT_TRUE(completion.ok());
    }
    EXPECT_EQ(relay.requests(), 10u);
}

TEST_F(AttachedCostTest, AnIdleProcessTakesLessThanAMebibyteBesideItsRings) {
    constexpr std::uint64_t kProcesses = 32;
    constexpr std::uint64_t kMost = 1024 * 1024;
    config_.memory.hugepages = decltype(config_.memory)::Hugepages::never;
    config_.memory.size = 16u << 20;
    config_.attach.user_clients_max = kProcesses + 1;
    Process daemon = start_daemon();
    // The daemon makes some objects only once, when the first process attaches.
    const auto one = std::make_unique<AttachedPair>(socket());
    const std::uint64_t before = memory_of(daemon.pid());
    std::vector<std::unique_ptr<AttachedPair>> all;
    for (std::uint64_t i = 0; i < kProcesses; ++i) {
        all.push_back(std::make_unique<AttachedPair>(socket()));
    }
    const std::uint64_t each = (memory_of(daemon.pid()) - before) / kProcesses;
    std::printf(
        "a process with a session, a region and two connected queue pairs takes %.0f KiB of the daemon's memory\n",
        static_cast<double>(each) / 1024);
    EXPECT_LT(each, kMost);
    EXPECT_GT(each, 0u);
}

}  // namespace
}  // namespace pollcore::test
