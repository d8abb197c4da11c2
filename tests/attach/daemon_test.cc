// A daemon by itself: its socket, and answers that do not come.
#include "attach/daemon_fixture.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include "pollcore/error.hpp"

namespace pollcore::test {
namespace {

TEST_F(DaemonTest, GivesItsSocketAwayWithTheRightsThatTheUnitLeavesIt) {
    constexpr uid_t kNobody = 65534;
    config_.attach.owner = std::to_string(kNobody);
    config_.attach.group = std::to_string(kNobody);
    config_.attach.mode = 0620;
    Process daemon = start_daemon({"--no-new-privs", "--inh-caps=-all", "--bounding-set=-all,+ipc_lock,+sys_nice,+net_bind_service,+chown"});
    const Attachment attachment({.path = socket(), .timeout = kPatience});
    struct stat status {};
    ASSERT_EQ(::stat(socket().c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, kNobody);
    EXPECT_EQ(status.st_gid, kNobody);
    EXPECT_EQ(status.st_mode & 07777u, 0620u);
}

TEST_F(DaemonTest, SaysInTheEndWhoWasThere) {
    config_.log_level = LogLevel::info;
    Process daemon = start_daemon();
    EXPECT_TRUE(Attachment({.path = socket(), .timeout = kPatience}).stop());
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    EXPECT_NE(daemon.err().find("attached since the start: 1 process; 1 detached, 0 died or hung up, 0 were ended for what they wrote; 0 refused"),
              std::string::npos)
        << daemon.err();
}

TEST_F(DaemonTest, TakesAllTheDescriptorsThatItsHardLimitAllows) {
    Process daemon = start_daemon();
    const Attachment attachment({.path = socket(), .timeout = kPatience});
    rlimit limit{};
    ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
    EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST_F(DaemonTest, OutOfDescriptorsRefusesTheCallAndKeepsTheProcess) {
    Process daemon = start_daemon();
    Attachment attachment({.path = socket(), .timeout = kPatience});
    Session before = attachment.open_session();
    rlimit limit{};
    ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
    // Fewer than it has. poll(2) asks for no more descriptors than this.
    const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
    ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
    try {
        (void)attachment.open_session();
        ADD_FAILURE() << "a daemon without descriptors has taken one";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), EMFILE) << error.what();
    }
    ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
    EXPECT_FALSE(attachment.lost());
    const Session after = attachment.open_session();
    EXPECT_NE(before.id(), after.id());
    EXPECT_EQ(daemon.err().find("is ended"), std::string::npos) << daemon.err();
}

TEST_F(DaemonTest, AReloadAppliesLimitsAndWhoMayAttachToThoseWhoAre) {
    Process daemon = start_daemon();
    Attachment attachment({.path = socket(), .timeout = kPatience});
    const Session session = attachment.open_session();
    const auto reload = [&] {
        (void)directory_.write("pollcored.toml", print_config(config_));
        daemon.signal(SIGHUP);
    };
    config_.attach.sessions_max = 1;
    reload();
    int error = 0;
    for (const auto until = Clock::now() + kPatience; error == 0 && Clock::now() < until;) {
        try {
            (void)attachment.open_session();
        } catch (const Error& refused) {
            error = refused.code().value();
        }
    }
    EXPECT_EQ(error, EDQUOT);
    EXPECT_FALSE(attachment.lost()) << "what it has it keeps";
    config_.attach.users = {std::to_string(::getuid() + 1)};
    reload();
    for (const auto until = Clock::now() + kPatience; !attachment.lost() && Clock::now() < until;) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(attachment.lost());
    EXPECT_TRUE(daemon.await_log("may not be attached any more")) << daemon.err();
}

// Stopped by a signal, as one whose machine has other things to do, or which is being looked at.
TEST_F(DaemonTest, ThatDoesNotAnswerIsWaitedForNoLongerThanWasSaid) {
    Process daemon = start_daemon();
    Attachment attachment({.path = socket(), .timeout = kPatience, .answer_within = 300ms});
    Session before = attachment.open_session();
    daemon.halt();
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
