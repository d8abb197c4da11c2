// Tests the daemon process: its descriptors, its socket, and requests that it does not answer.
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <future>
#include <string>

#include "attach/daemon_fixture.hpp"
#include "eventually.hpp"
#include "log_capture.hpp"
#include "patient.hpp"
#include "pollcore/error.hpp"

namespace pollcore::test {
namespace {

// The calling thread must have the capability in its permitted set. The daemon looks at the main thread's set.
void make_net_raw_effective(bool effective) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2]{};
    ASSERT_EQ(::syscall(SYS_capget, &header, data), 0);
    const std::uint32_t bit = 1U << CAP_NET_RAW;
    data[0].effective = effective ? data[0].effective | bit : data[0].effective & ~bit;
    ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
}

TEST_F(DaemonTest, GivesItsSocketAwayWithTheRightsThatTheUnitLeavesIt) {
    constexpr uid_t kNobody = 65534;
    config_.attach.owner = std::to_string(kNobody);
    config_.attach.group = std::to_string(kNobody);
    config_.attach.mode = 0620;
    Process daemon =
        start_daemon({"--no-new-privs", "--inh-caps=-all", "--bounding-set=-all,+net_bind_service,+chown"});
    const Attachment attachment(test::patient({.path = socket()}));
    struct stat status {};
    ASSERT_EQ(::stat(socket().c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, kNobody);
    EXPECT_EQ(status.st_gid, kNobody);
    EXPECT_EQ(status.st_mode & 07777u, 0620u);
}

TEST_F(DaemonTest, GivesAPrivilegedQkeyOnlyToThoseWhoAttachWithTheCapability) {
    constexpr std::uint32_t kPrivileged = 0x8001'0000;
    Process daemon = start_daemon();
    const auto error_of = [&](Attachment& attachment, std::uint32_t qkey) {
        Session session = attachment.open_session();
        try {
            const QueuePair qp =
                attachment.create_queue_pair({.type = QpType::ud, .qkey = qkey, .shares = {{.session = &session}}});
            EXPECT_EQ(qp.info().qkey, qkey);
            return 0;
        } catch (const Error& error) {
            return error.code().value();
        }
    };
    make_net_raw_effective(false);
    Attachment without(test::patient({.path = socket()}));
    make_net_raw_effective(true);
    Attachment with(test::patient({.path = socket()}));
    EXPECT_EQ(error_of(without, kPrivileged), EPERM);
    EXPECT_EQ(error_of(without, kPrivileged - 1), EPERM);
    EXPECT_EQ(error_of(without, 0x7fff'ffff), 0);
    EXPECT_EQ(error_of(with, kPrivileged), 0);

    const auto error_by_hand = [&](Attachment& attachment, std::uint32_t qkey) {
        Session session = attachment.open_session();
        QueuePair qp =
            attachment.create_queue_pair({.type = QpType::ud, .shares = {{.session = &session}}, .by_hand = true});
        try {
            qp.modify({.qp_state = VerbsQpState::init,
                       .pkey_index = std::uint16_t{0},
                       .port_num = std::uint8_t{1},
                       .qkey = qkey});
            EXPECT_EQ(qp.query().attributes.qkey, qkey);
            return 0;
        } catch (const Error& error) {
            return error.code().value();
        }
    };
    EXPECT_EQ(error_by_hand(without, kPrivileged), EPERM);
    EXPECT_EQ(error_by_hand(without, 0x7fff'ffff), 0);
    EXPECT_EQ(error_by_hand(with, kPrivileged), 0);
}

TEST_F(DaemonTest, SaysInTheEndWhoWasThere) {
    config_.log_level = LogLevel::info;
    Process daemon = start_daemon();
    EXPECT_TRUE(Attachment(test::patient({.path = socket()})).stop());
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    EXPECT_NE(daemon.err().find("attached since the start: 1 process; 1 detached, 0 died or hung up, 0 were ended for "
                                "corrupting their rings, 0 by an operator; 0 refused"),
              std::string::npos)
        << daemon.err();
}

TEST_F(DaemonTest, TakesAllTheDescriptorsThatItsHardLimitAllows) {
    Process daemon = start_daemon();
    const Attachment attachment(test::patient({.path = socket()}));
    rlimit limit{};
    ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
    EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST_F(DaemonTest, OutOfDescriptorsRefusesTheCallAndKeepsTheProcess) {
    Process daemon = start_daemon();
    Attachment attachment(test::patient({.path = socket()}));
    Session before = attachment.open_session();
    rlimit limit{};
    ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
    // The limit is lower than the number of descriptors that the daemon has open. But it is not lower than the number
    // of descriptors that one call of poll(2) gets, because such a call would fail.
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

// The daemon keeps some descriptors for its own work, however many processes attach and however many descriptors they
// pass.
TEST_F(DaemonTest, LeavesNobodyElseTheLastOfItsDescriptors) {
    constexpr std::size_t kLimit = 200;
    constexpr std::size_t kReserved = 32;
    config_.workers[0].idle = IdlePolicy::event;
    config_.attach.clients_max = config_.attach.user_clients_max = 1000;
    config_.log_level = LogLevel::info;
    Process daemon = start_daemon();
    std::vector<Attachment> all;
    all.push_back(Attachment(test::patient({.path = socket()})));
    const rlimit few{.rlim_cur = kLimit, .rlim_max = kLimit};
    ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
    const auto open = [&] {
        const std::filesystem::directory_iterator fds("/proc/" + std::to_string(daemon.pid()) + "/fd");
        return static_cast<std::size_t>(std::distance(begin(fds), end(fds)));
    };
    int refused = 0;
    std::vector<Session> sessions;
    for (int i = 0; i < 400; ++i) {
        try {
            if (i % 2 == 0) {
                all.push_back(Attachment(test::patient({.path = socket()})));
            } else {
                sessions.push_back(
                    all.back().open_session({.submission_slots = 64, .completion_slots = 64, .events = true}));
            }
        } catch (const Error& error) {
            EXPECT_EQ(error.code().value(), EMFILE) << error.what();
            ++refused;
        }
        // One process at most is being admitted. Descriptors of refused processes are closed later, by another thread.
        constexpr std::size_t kMost = kLimit - kReserved + 8;
        ASSERT_TRUE(eventually([&] { return open() <= kMost; })) << open();
    }
    EXPECT_GT(refused, 0);
    // The daemon can still read its configuration, for which it needs a descriptor.
    daemon.signal(SIGHUP);
    EXPECT_TRUE(daemon.await_log("SIGHUP: reloaded", kPatience)) << daemon.err();
    EXPECT_EQ(daemon.err().find("nothing was changed"), std::string::npos) << daemon.err();
    for (const Attachment& attachment : all) {
        EXPECT_FALSE(attachment.lost());
    }
}

TEST_F(DaemonTest, AReloadAppliesLimitsAndWhoMayAttachToThoseWhoAre) {
    Process daemon = start_daemon();
    Attachment attachment(test::patient({.path = socket()}));
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

TEST_F(DaemonTest, MakesItsSocketAnewWhenTheFileWasRemovedAndKeepsThoseWhoAreAttached) {
    Process daemon = start_daemon();
    Attachment before(test::patient({.path = socket()}));
    for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(std::filesystem::remove(socket()));
        Attachment after(test::patient({.path = socket()}));
        EXPECT_NO_THROW((void)after.open_session());
    }
    EXPECT_FALSE(before.lost());
    EXPECT_NO_THROW((void)before.open_session());
    struct stat status {};
    ASSERT_EQ(::stat(socket().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, config_.attach.mode);
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    EXPECT_EQ(occurrences(daemon.err(), " was removed, and is made anew"), 2U) << daemon.err();
    EXPECT_FALSE(std::filesystem::exists(socket()));
}

TEST_F(DaemonTest, LeavesSomethingElseAtItsPathAloneUntilItIsGone) {
    Process daemon = start_daemon();
    Attachment before(test::patient({.path = socket()}));
    const std::filesystem::path aside = socket() + ".aside";
    (void)directory_.write("attach.sock.aside", "precious");
    std::filesystem::rename(aside, socket());
    ASSERT_TRUE(daemon.await_log("something else stands at " + socket())) << daemon.err();
    EXPECT_EQ(read_file(socket()), "precious");
    ASSERT_TRUE(std::filesystem::remove(socket()));
    const Attachment after(test::patient({.path = socket()}));
    EXPECT_FALSE(before.lost());
    // When the daemon ends, it removes no file at the path but its own socket.
    (void)directory_.write("attach.sock.aside", "precious, too");
    std::filesystem::rename(aside, socket());
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    EXPECT_EQ(read_file(socket()), "precious, too");
}

TEST_F(DaemonTest, SaysOnceThatItsSocketCannotBeMadeAnewAndMakesItWhenItCan) {
    const std::filesystem::path place = directory_.path() / "place";
    std::filesystem::create_directory(place);
    config_.attach.path = place / "attach.sock";
    Process daemon = start_daemon();
    Attachment before(test::patient({.path = socket()}));
    std::filesystem::rename(place, directory_.path() / "gone");
    ASSERT_TRUE(daemon.await_log("cannot be made anew yet")) << daemon.err();
    std::filesystem::create_directory(place);
    const Attachment after(test::patient({.path = socket()}));
    EXPECT_FALSE(before.lost());
    const std::string log = daemon.err();
    EXPECT_EQ(log.find("cannot be made anew yet"), log.rfind("cannot be made anew yet")) << log;
}

TEST_F(DaemonTest, ASecondDaemonAtThePathIsRefusedAndTheFirstGoesOn) {
    Process first = start_daemon();
    Attachment attachment(test::patient({.path = socket()}));
    Process second = start_daemon();
    EXPECT_EQ(second.wait(), 1);
    EXPECT_NE(second.err().find("another process has its socket there"), std::string::npos) << second.err();
    EXPECT_NO_THROW((void)Attachment(test::patient({.path = socket()})).open_session());
    EXPECT_FALSE(attachment.lost());
}

TEST_F(DaemonTest, ServesAndEndsThoughNobodyReadsItsStderr) {
    constexpr int kAttached = 200;
    const std::string fifo = directory_.path() / "stderr";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    const UniqueFd unread(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(unread.valid());
    ASSERT_EQ(::fcntl(unread.get(), F_SETPIPE_SZ, 4096), 4096);
    config_.log_level = LogLevel::info;
    Process daemon({"/usr/bin/setpriv", "--pdeathsig", "KILL", "/bin/sh", "-c", "exec \"$0\" --config \"$1\" 2> \"$2\"",
                    pollcored_path(), directory_.write("pollcored.toml", print_config(config_)).string(), fifo},
                   {}, directory_.path());
    for (int i = 0; i < kAttached; ++i) {
        Attachment attachment({.path = socket(), .timeout = kPatience, .answer_within = kPatience});
        const Session session = attachment.open_session();
        EXPECT_TRUE(attachment.stop());
    }
    // The pipe must be full, otherwise the test proves nothing.
    pollfd room{.fd = unread.get(), .events = POLLOUT, .revents = 0};
    EXPECT_EQ(::poll(&room, 1, 0), 0);
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    std::string log(4096, '\0');
    const ssize_t got = ::read(unread.get(), log.data(), log.size());
    ASSERT_GT(got, 0);
    log.resize(static_cast<std::size_t>(got));
    EXPECT_NE(log.find("info: pollcored"), std::string::npos) << log;
}

// SIGSTOP simulates a busy machine or a debugger.
TEST_F(DaemonTest, ThatDoesNotAnswerIsWaitedForNoLongerThanWasSaid) {
    Process daemon = start_daemon();
    Attachment attachment({.path = socket(), .timeout = kPatience, .answer_within = 2s});
    Attachment patient({.path = socket(), .timeout = kPatience, .answer_within = 10 * kPatience});
    Session before = attachment.open_session();
    daemon.halt();
    std::future<Session> answered = std::async(std::launch::async, [&] { return patient.open_session(); });
    for (int i = 0; i < 2; ++i) {  // each call takes `answer_within` and the daemon's drain_timeout
        try {
            (void)attachment.open_session();
            ADD_FAILURE() << "a daemon that is stopped has answered";
        } catch (const Error& error) {
            EXPECT_EQ(error.code().value(), ETIMEDOUT) << error.what();
        }
    }
    EXPECT_FALSE(attachment.lost()) << "slow is not dead";
    EXPECT_EQ(answered.wait_for(0s), std::future_status::timeout) << "it has said that it waits longer";
    daemon.signal(SIGCONT);
    // The daemon also handles the earlier requests, although nobody waits for their answers.
    Session after = attachment.open_session();
    EXPECT_NE(before.id(), after.id());
    EXPECT_NO_THROW((void)answered.get());
    EXPECT_TRUE(attachment.stop());
    EXPECT_TRUE(patient.stop());
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

}  // namespace
}  // namespace pollcore::test
