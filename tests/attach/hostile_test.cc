// Runs a process that attacks the daemon (hostile.cc) or takes as much as it can get (greedy.cc), beside two
// well-behaved attachments of the test itself.
#include <fstream>
#include <regex>
#include <set>

#include "attach/daemon_fixture.hpp"
#include "patient.hpp"

namespace pollcore::test {
namespace {

struct Attack {
    const char* name;
    const char* line;  // the daemon's log must contain it; empty if the behaviour is allowed
    bool old_kernel = false;
    const char* program = "hostile";
};

class HostileTest : public DaemonTest, public testing::WithParamInterface<Attack> {};

// Only the connection's thread and the closing threads receive, seal and close a process's descriptors. The test checks
// the system calls of the daemon's threads with strace(1) while the daemon is attacked.
TEST_F(DaemonTest, NoThreadThatOthersWaitForTouchesADescriptorOfAProcess) {
    config_.workers[0].idle = {{.policy = IdlePolicy::event}};
    config_.drain_timeout = 20s;  // the daemon is slow, because strace traces each of its calls
    const std::filesystem::path trace = directory_.path() / "trace";
    // strace runs as a separate process (-D). The leak sanitizer cannot work under strace; the other tests look for
    // leaks.
    Process daemon(
        {"/usr/bin/setpriv", "--pdeathsig", "KILL", "strace", "-D", "-f", "--decode-pids=comm", "-e",
         "trace=accept4,recvmsg,recvfrom,read,close,fcntl,munmap", "-o", trace.string(), pollcored_path(), "--config",
         directory_.write("pollcored.toml", print_config(config_)).string()},
        {"LD_PRELOAD=" + test_program("old-kernel.so"), "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0"},
        directory_.path());
    Attachment innocent(test::patient({.path = socket()}));
    Process hostile = start("hostile", {"lingering-descriptors", socket(), "0"});
    for (int i = 0; i < 20; ++i) {
        Session session = innocent.open_session({.events = true});  // the daemon still answers every call
    }
    ASSERT_EQ(hostile.wait(), 0) << hostile.out() << hostile.err();
    EXPECT_NE(hostile.out().find("done"), std::string::npos) << hostile.out();
    Session session = innocent.open_session();
    EXPECT_TRUE(daemon.await_log("no message of this library")) << daemon.err();
    session = {};
    EXPECT_TRUE(innocent.stop());
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    const std::string end = std::to_string(daemon.pid()) + "<pollcored> +++ exited with 0 +++";
    for (const auto until = Clock::now() + kPatience; read_file(trace).find(end) == std::string::npos;) {
        ASSERT_LT(Clock::now(), until) << "strace does not say that the daemon has ended";
        std::this_thread::sleep_for(2ms);
    }

    std::set<std::string> foreign;
    int closed = 0;
    int sealed = 0;
    std::ifstream lines(trace);
    const std::regex call(R"(^\d+<([^>]*)> +(?:<\.\.\. )?(\w+)(?:\((\d+)| resumed>)?.*?)");
    const std::regex result(R"(= (\d+)(?:$| ))");
    const std::regex passed(R"(SCM_RIGHTS, cmsg_data=\[([0-9, ]+)\])");
    const std::regex number(R"(\d+)");
    for (std::string line; std::getline(lines, line);) {
        std::smatch found;
        if (!std::regex_search(line, found, call)) {
            continue;
        }
        const std::string thread = found[1];
        const std::string name = found[2];
        const std::string fd = found[3];
        const bool its_own = thread == "pollcore-conn" || thread == "pollcore-close";
        const bool seals = line.find("F_ADD_SEALS") != std::string::npos && foreign.contains(fd);
        if (name == "recvmsg" || name == "recvfrom" || seals) {
            EXPECT_TRUE(its_own) << line;
            sealed += seals;
        }
        if (std::smatch returned; name == "accept4" && std::regex_search(line, returned, result)) {
            foreign.insert(returned[1]);
        }
        if (std::smatch fds; name == "recvmsg" && std::regex_search(line, fds, passed)) {
            const std::string all = fds[1];
            for (std::sregex_iterator each(all.begin(), all.end(), number); each != std::sregex_iterator(); ++each) {
                foreign.insert(each->str());
            }
        }
        if (name == "close" && !fd.empty() && foreign.erase(fd) != 0) {
            EXPECT_TRUE(its_own) << line;
            ++closed;
        }
    }
    EXPECT_GT(closed, 8 * 24) << "what was passed was not seen";
    EXPECT_GT(sealed, 20) << "what the innocent brought was not seen";
}

// A thread that closes a file whose FLUSH is never answered waits until the hostile process has ended. The kernel tells
// the file system the ids of the waiting threads, and the test checks the names of these threads.
TEST_F(DaemonTest, AFileWhoseFlushIsNeverAnsweredHoldsUpWhoClosesItAndNobodyElse) {
    Process daemon = start_daemon();
    Witness witness(socket());
    Process hostile = start("hostile", {"unanswered-flush", socket(), "600000"});
    const auto until = Clock::now() + kPatience;
    const auto threads_that_wait = [&] {
        std::set<std::string> names;
        const std::string out = hostile.out();
        const std::regex line("flushed by (\\d+)");
        for (std::sregex_iterator each(out.begin(), out.end(), line); each != std::sregex_iterator(); ++each) {
            const std::filesystem::path thread =
                "/proc/" + std::to_string(daemon.pid()) + "/task/" + (*each)[1].str() + "/comm";
            if (std::filesystem::exists(thread)) {
                names.insert(read_file(thread));
            }
        }
        return names;
    };
    while (hostile.out().find("passed") == std::string::npos || threads_that_wait().empty()) {
        ASSERT_LT(Clock::now(), until) << hostile.out() << hostile.err() << daemon.err();
        std::this_thread::sleep_for(2ms);
    }
    // The worker, the control thread and the accepting thread go on.
    const std::uint64_t checked = witness.checked();
    while (witness.checked() < checked + 1000) {
        ASSERT_LT(Clock::now(), until) << "the worker does nothing: " << witness.wrong();
        std::this_thread::sleep_for(1ms);
    }
    for (int i = 0; i < 20; ++i) {
        Attachment innocent(test::patient({.path = socket()}));
        const Session session = innocent.open_session({.events = true});
        EXPECT_TRUE(innocent.stop());
    }
    for (const std::string& name : threads_that_wait()) {
        EXPECT_TRUE(name == "pollcore-conn\n" || name == "pollcore-close\n") << name;
    }
    EXPECT_EQ(hostile.out().find("failed"), std::string::npos) << hostile.out();
    hostile.signal(SIGKILL);
    EXPECT_EQ(hostile.wait(), 128 + SIGKILL);
    witness.join();
    EXPECT_EQ(witness.wrong(), "");
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

TEST_P(HostileTest, HurtsNobodyAndItIsInTheLog) {
    const int milliseconds = rounds_of("POLLCORE_ATTACK_MS", 1000);
    Process daemon = start_daemon({}, GetParam().old_kernel ? as_on_an_old_kernel() : std::vector<std::string>());
    Witness witness(socket());
    const auto until = Clock::now() + kPatience;
    while (witness.checked() < 100) {
        ASSERT_LT(Clock::now(), until) << daemon.err();
        std::this_thread::sleep_for(1ms);
    }
    Caller caller(socket());
    while (caller.rounds() < 3) {
        ASSERT_LT(Clock::now(), until) << daemon.err();
        std::this_thread::sleep_for(1ms);
    }
    const std::uint64_t checked = witness.checked();
    const std::uint64_t called = caller.rounds();
    Process hostile = start(GetParam().program, {GetParam().name, socket(), std::to_string(milliseconds)});
    EXPECT_EQ(hostile.wait(), 0) << hostile.out() << hostile.err();
    EXPECT_EQ(hostile.out().find("failed"), std::string::npos) << hostile.out();
    EXPECT_TRUE(daemon.await_log(GetParam().line, kPatience)) << hostile.out() << daemon.err();
    EXPECT_TRUE(witness.checks_more_than(checked + 100));
    // No call hangs, and none fails.
    for (const auto answered_until = Clock::now() + kPatience; caller.rounds() <= called;) {
        ASSERT_LT(Clock::now(), answered_until) << daemon.err();
        std::this_thread::sleep_for(1ms);
    }
    // A new process can attach.
    {
        Process innocent = start("attached-load", {"load", socket(), "1"});
        for (const auto running_until = Clock::now() + kPatience;
             innocent.out().find("running") == std::string::npos;) {
            ASSERT_LT(Clock::now(), running_until) << innocent.out() << daemon.err();
            std::this_thread::sleep_for(2ms);
        }
    }
    EXPECT_EQ(caller.end(), "");
    witness.join();
    EXPECT_EQ(witness.wrong(), "");
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    EXPECT_LT(daemon.err().size(), 200'000u) << "the log is flooded";
}

INSTANTIATE_TEST_SUITE_P(
    By, HostileTest,
    testing::Values(Attack{"garbage-messages", "attach: "}, Attack{"garbage-requests", "attach: "},
                    Attack{"connection-flood", "attach: "}, Attack{"descriptor-flood", "no message of this library"},
                    Attack{"lingering-descriptors", "no message of this library"},
                    Attack{"descriptor-flood", "no message of this library", true},
                    Attack{"lingering-descriptors", "no message of this library", true},
                    Attack{"no-reading", "does not read"}, Attack{"bad-memory", "shared memory is not accepted"},
                    Attack{"garbage-slots", "its workers refused"}, Attack{"flipped-slots", "client 3 ("},
                    Attack{"flipped-everything", "client 3 ("}, Attack{"moving-indices", "that no session writes"},
                    Attack{"others-handles", "is not this process's"}, Attack{"much-memory", "", false, "greedy"},
                    Attack{"many-objects", "would exceed its limit of", false, "greedy"},
                    Attack{"many-requests", "requests were refused", false, "greedy"},
                    Attack{"silent-addresses", "", false, "greedy"}),
    [](const auto& attack) {
        std::string name = attack.param.name;
        std::replace(name.begin(), name.end(), '-', '_');
        return attack.param.old_kernel ? name + "_on_an_old_kernel" : name;
    });

}  // namespace
}  // namespace pollcore::test
