// A process that attacks the daemon (hostile.cc), beside one that is as it should be.
#include "attach/daemon_fixture.hpp"

namespace pollcore::test {
namespace {

struct Attack {
    const char* name;
    const char* line;  // that the log has of it
};

class HostileTest : public DaemonTest, public testing::WithParamInterface<Attack> {};

TEST_P(HostileTest, HurtsNobodyAndItIsInTheLog) {
    const int milliseconds = rounds_of("POLLCORE_ATTACK_MS", 1000);
    Process daemon = start_daemon();
    Witness witness(socket());
    const auto until = Clock::now() + kPatience;
    while (witness.checked() < 100) {
        ASSERT_LT(Clock::now(), until) << daemon.err();
        std::this_thread::sleep_for(1ms);
    }
    const std::uint64_t checked = witness.checked();
    Process hostile = start("hostile", {GetParam().name, socket(), std::to_string(milliseconds)});
    EXPECT_EQ(hostile.wait(), 0) << hostile.out() << hostile.err();
    EXPECT_EQ(hostile.out().find("failed"), std::string::npos) << hostile.out();
    EXPECT_TRUE(daemon.await_log(GetParam().line, 5s)) << hostile.out() << daemon.err();
    EXPECT_GT(witness.checked(), checked + 100) << "nothing was checked meanwhile";
    // And somebody new comes in.
    {
        Process innocent = start("attached-load", {"load", socket(), "1"});
        while (innocent.out().find("running") == std::string::npos) {
            ASSERT_LT(Clock::now(), until) << innocent.out() << daemon.err();
            std::this_thread::sleep_for(2ms);
        }
    }
    witness.join();
    EXPECT_EQ(witness.wrong(), "");
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    EXPECT_LT(daemon.err().size(), 200'000u) << "the log is flooded";
}

INSTANTIATE_TEST_SUITE_P(By, HostileTest,
                         testing::Values(Attack{"garbage-messages", "attach: "}, Attack{"garbage-requests", "attach: "},
                                         Attack{"connection-flood", "attach: "}, Attack{"descriptor-flood", "no message of this library"},
                                         Attack{"no-reading", "does not read"}, Attack{"bad-memory", "shared memory is not accepted"},
                                         Attack{"garbage-slots", "its workers refused"}, Attack{"flipped-slots", "client 2 ("},
                                         Attack{"flipped-everything", "client 2 ("}, Attack{"moving-indices", "what no session writes"},
                                         Attack{"others-handles", "is not this process's"}),
                         [](const auto& attack) {
                             std::string name = attack.param.name;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace pollcore::test
