// A daemon that does not answer: stopped by a signal, as one whose machine has other things to do, or which is being looked at.
#include "attach/daemon_fixture.hpp"

#include "pollcore/error.hpp"

namespace pollcore::test {
namespace {

class StuckDaemonTest : public DaemonTest {};

TEST_F(StuckDaemonTest, IsWaitedForNoLongerThanWasSaid) {
    Process daemon = start_daemon();
    Attachment attachment({.path = socket(), .timeout = kPatience, .answer_within = 300ms});
    Session before = attachment.open_session();
    daemon.signal(SIGSTOP);
    const auto began = Clock::now();
    try {
        (void)attachment.open_session();
        ADD_FAILURE() << "a daemon that is stopped has answered";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), ETIMEDOUT) << error.what();
    }
    EXPECT_GE(Clock::now() - began, 300ms);
    EXPECT_LT(Clock::now() - began, 3s);
    EXPECT_FALSE(attachment.lost()) << "slow is not dead";
    daemon.signal(SIGCONT);
    // It goes on with the one before, too, whose answer nobody waits for.
    Session after = attachment.open_session();
    EXPECT_NE(before.id(), after.id());
    EXPECT_TRUE(attachment.stop());
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

}  // namespace
}  // namespace pollcore::test
