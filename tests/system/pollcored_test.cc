// Tests pollcored as a process: command line, start, readiness, watchdog, signals, exit codes. Other tests cover the
// traffic of its services: services_test.cc in one process, daemon_over_rxe.sh over a real device.
#include <sys/ptrace.h>

#include <algorithm>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "daemon_process.hpp"
#include "pollcore/config.hpp"
#include "test_cpus.hpp"

namespace pollcore::test {
namespace {

class PollcoredTest : public testing::Test {
protected:
    [[nodiscard]] std::string config_text(const std::string& more = "") const {
        return "[runtime]\n"
               "lock_directory = \"" +
               directory_.path().native() + "\"\n" +
               "[[device]]\n"
               "name = \"soft0\"\n"
               "kind = \"soft\"\n"
               "[[worker]]\n"
               "name = \"worker0\"\n"
               "core = " +
               std::to_string(last_cpu()) + "\n" +
               "idle = \"yield\"\n"
               "[[service]]\n"
               "name = \"echo0\"\n"
               "kind = \"echo\"\n"
               "device = \"soft0\"\n"
               "worker = \"worker0\"\n"
               "address = \"echo0\"\n" +
               more;
    }
    [[nodiscard]] std::filesystem::path write_config(const std::string& more = "") const {
        return directory_.write("pollcored.toml", config_text(more));
    }
    [[nodiscard]] Process run(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), pollcored_path());
        return Process(std::move(arguments), {}, directory_.path());
    }
    [[nodiscard]] Process start(std::vector<std::string> environment = {}, std::vector<std::string> arguments = {}) {
        return start_with(write_config(), std::move(environment), std::move(arguments));
    }
    [[nodiscard]] Process start_with(const std::filesystem::path& config, std::vector<std::string> environment,
                                     std::vector<std::string> arguments = {}) {
        environment.push_back("NOTIFY_SOCKET=" + notify_.path().native());
        arguments.insert(arguments.begin(), {pollcored_path(), "--config", config.native()});
        return Process(std::move(arguments), environment, directory_.path());
    }

    TemporaryDirectory directory_;
    NotifySocket notify_{directory_.path() / "notify"};
};

// ---- Command line ----

TEST_F(PollcoredTest, VersionIsPrinted) {
    Process daemon = run({"--version"});
    EXPECT_EQ(daemon.wait(), 0);
    EXPECT_TRUE(std::regex_match(
        daemon.out(),
        std::regex("pollcored \\d+\\.\\d+\\.\\d+\nbuilt from .+\n.+\nwith libibverbs .+, DPDK .+, fmt .+\n")))
        << daemon.out();
}

TEST_F(PollcoredTest, TheWholeHelpTellsTheExitCodes) {
    Process daemon = run({"--help-all"});
    EXPECT_EQ(daemon.wait(), 0);
    EXPECT_NE(daemon.out().find("Exit status"), std::string::npos) << daemon.out();
}

TEST_F(PollcoredTest, AWrongCommandLineExitsWithTwo) {
    const std::string file = write_config().native();
    const std::vector<std::vector<std::string>> wrong{{},
                                                      {"--config"},
                                                      {"--config", file, "--no-such-option"},
                                                      {"--config", file, "--log-level", "loud"},
                                                      {"--config", file, "--check", "--print"}};
    for (const auto& arguments : wrong) {
        Process daemon = run(arguments);
        EXPECT_EQ(daemon.wait(), 2) << testing::PrintToString(arguments);
        EXPECT_FALSE(daemon.err().empty());
    }
}

// ---- Configuration ----

TEST_F(PollcoredTest, CheckAcceptsAGoodFile) {
    Process daemon = run({"--config", write_config().native(), "--check"});
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    EXPECT_NE(daemon.out().find("accepted"), std::string::npos);
}

TEST_F(PollcoredTest, ABadFileIsRefusedInOneLineThatNamesThePlace) {
    const std::string file = write_config("colour = \"red\"\n").native();
    for (const bool check : {true, false}) {
        Process daemon = check ? run({"--config", file, "--check"}) : run({"--config", file});
        EXPECT_EQ(daemon.wait(), 2);
        const std::string message = daemon.err();
        EXPECT_TRUE(message.starts_with(file + ":16: ")) << message;
        EXPECT_NE(message.find("colour"), std::string::npos) << message;
        EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
    }
}

// Each error message names the key that is refused, the key's line, and the reason.
TEST_F(PollcoredTest, WhatThisMachineHasNotIsRefusedByTheCheckAndAtTheStart) {
    const std::string here = directory_.path().native();
    const std::string file = directory_.write("file", "").native();
    const std::string socket = "[attach]\npath = \"" + here + "/attach.sock\"\n";
    const std::string owned = config_text();
    const std::string elsewhere =
        std::regex_replace(owned, std::regex("lock_directory = .*"), "lock_directory = \"" + here + "/none\"");
    const std::string in_a_file =
        std::regex_replace(owned, std::regex("lock_directory = .*"), "lock_directory = \"" + file + "\"");
    const std::vector<std::pair<std::string, std::string>> wrong{
        {elsewhere, ":2: runtime.lock_directory = \"" + here + "/none\": there is no such directory"},
        {in_a_file, ":2: runtime.lock_directory = \"" + file + "\": it is no directory"},
        {owned + "[attach]\npath = \"" + here + "/none/attach.sock\"\n",
         ":17: attach.path = \"" + here + "/none/attach.sock\": the socket cannot be made in \"" + here +
             "/none\": there is no such directory"},
        {owned + "[attach]\npath = \"" + file + "\"\n",
         ":17: attach.path = \"" + file + "\": there is something else than a socket"},
        {owned + socket + "mode = \"0000\"\n", ":18: attach.mode = \"0000\": nobody may write"},
        {owned + socket + "users = [\"no-such-user\"]\n",
         ":18: attach.users = [...]: this machine has no user \"no-such-user\""},
        {owned + socket + "groups = [\"4294967295\"]\n",
         ":18: attach.groups = [...]: no group has the number 4294967295"},
    };
    for (const auto& [text, why] : wrong) {
        const std::string name = directory_.write("pollcored.toml", text).native();
        for (const char* action : {"--check", "--log-level=info"}) {
            Process daemon = run({"--config", name, action});
            EXPECT_EQ(daemon.wait(), 2) << action;
            EXPECT_TRUE(daemon.err().starts_with(name + why))
                << action << " says " << daemon.err() << " where " << name << why << " belongs";
        }
    }
}

TEST_F(PollcoredTest, AFileThatIsNotThereIsNamed) {
    Process daemon = run({"--config", "/no/such/file.toml"});
    EXPECT_EQ(daemon.wait(), 2);
    EXPECT_NE(daemon.err().find("/no/such/file.toml"), std::string::npos) << daemon.err();
}

TEST_F(PollcoredTest, ServicesThatDoNotFitTogetherAreRefused) {
    const std::string second =
        "message_size_max = \"64KiB\"\n"
        "[[service]]\nname = \"store\"\nkind = \"memory\"\ndevice = \"soft0\"\nworker = \"worker0\"\n"
        "address = \"store\"\nsize = \"32MiB\"\n";
    Process daemon = run({"--config", write_config(second).native(), "--check"});
    EXPECT_EQ(daemon.wait(), 2);
    EXPECT_NE(daemon.err().find("memory.size"), std::string::npos) << daemon.err();
}

TEST_F(PollcoredTest, WhatPrintPrintsReadsBackAsTheSame) {
    Process first = run({"--config", write_config().native(), "--print"});
    ASSERT_EQ(first.wait(), 0) << first.err();
    const std::string text = first.out();
    EXPECT_NE(text.find("# default"), std::string::npos);
    EXPECT_EQ(parse_config(text, "printed"), parse_config(config_text(), "written"));

    Process second = run({"--config", directory_.write("printed.toml", text).native(), "--print"});
    ASSERT_EQ(second.wait(), 0) << second.err();
    EXPECT_EQ(second.out(), text);
}

// ---- Life ----

TEST_F(PollcoredTest, ItSaysReadyAndEndsWithZeroOnSigtermOrSigint) {
    for (const int signal : {SIGTERM, SIGINT}) {
        Process daemon = start();
        const auto ready = notify_.await("READY=1");
        ASSERT_TRUE(ready) << daemon.err();
        EXPECT_NE(ready->find("STATUS=1 service, 0 connections"), std::string::npos) << *ready;

        daemon.signal(signal);
        const auto stopping = notify_.await("STOPPING=1");
        EXPECT_TRUE(stopping);
        EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    }
}

TEST_F(PollcoredTest, TheLogTellsWhatWasFoundAndDecided) {
    Process daemon = start();
    ASSERT_TRUE(daemon.await_log("ready: 1 service")) << daemon.err();
    const std::string log = daemon.err();
    for (const char* text :
         {"device soft0: ", "memory: ", "EAL: ", "worker worker0: core ", "idle yield", "poll auto", "extended CQs",
          ", time stamps", "service echo0: listens on echo0; messages of up to 4096 bytes", "ready: 1 service"}) {
        EXPECT_NE(log.find(text), std::string::npos) << "no \"" << text << "\" in\n" << log;
    }
}

TEST_F(PollcoredTest, LogLevelOverridesTheFile) {
    Process daemon = start({}, {"--log-level", "error"});
    ASSERT_TRUE(notify_.await("READY=1")) << daemon.err();
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0);
    EXPECT_EQ(daemon.err(), "");
}

TEST_F(PollcoredTest, ASignalDuringTheStartStopsItCleanlyAfterwards) {
    Process daemon = start();
    ASSERT_TRUE(daemon.await_log("pollcored ")) << daemon.err();
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

TEST_F(PollcoredTest, SighupAppliesWhatCanChangeAndNamesTheRest) {
    Process daemon = start();
    ASSERT_TRUE(notify_.await("READY=1")) << daemon.err();
    std::string text = config_text(
        "[[service]]\nname = \"store\"\nkind = \"memory\"\ndevice = \"soft0\"\nworker = \"worker0\"\naddress = "
        "\"store\"\n");
    const auto replace = [&](const std::string& from, const std::string& to) {
        text.replace(text.find(from), from.size(), to);
    };
    replace("[runtime]\n", "[runtime]\nqps_max = 2048\nlog_level = \"debug\"\n");
    replace("idle = \"yield\"", "idle = \"pause\"");
    replace("address = \"echo0\"", "address = \"elsewhere\"");
    (void)directory_.write("pollcored.toml", text);
    daemon.signal(SIGHUP);
    EXPECT_TRUE(notify_.await("RELOADING=1")) << daemon.err();
    EXPECT_TRUE(notify_.await("READY=1")) << daemon.err();
    EXPECT_TRUE(daemon.await_log("SIGHUP: reloaded"));
    const std::string log = daemon.err();
    EXPECT_NE(log.find("runtime.qps_max cannot change while the daemon runs"), std::string::npos) << log;
    EXPECT_NE(log.find("worker[0].idle cannot change while the daemon runs"), std::string::npos) << log;
    EXPECT_EQ(log.find("log_level cannot"), std::string::npos) << log;
    EXPECT_NE(log.find("service echo0 ends"), std::string::npos) << log;
    EXPECT_NE(log.find("service echo0 begins: listens on elsewhere"), std::string::npos) << log;
    EXPECT_NE(log.find("service store begins"), std::string::npos) << log;

    (void)directory_.write("pollcored.toml", text + "nonsense\n");
    daemon.signal(SIGHUP);
    EXPECT_TRUE(daemon.await_log("nothing was changed")) << daemon.err();

    (void)directory_.write("pollcored.toml", text + "[attach]\npath = \"" +
                                                 (directory_.path() / "attach.sock").native() +
                                                 "\"\nusers = [\"no-such-user\"]\n");
    daemon.signal(SIGHUP);
    EXPECT_TRUE(daemon.await_log("no user \"no-such-user\"; accepted: ")) << daemon.err();
    EXPECT_EQ(daemon.wait(100ms), std::nullopt) << "it ended";
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

TEST_F(PollcoredTest, ASecondInstanceOnTheSameCoreIsRefusedAndNamesTheOwner) {
    Process owner = start();
    ASSERT_TRUE(notify_.await("READY=1")) << owner.err();

    Process second = run({"--config", (directory_.path() / "pollcored.toml").native()});
    EXPECT_EQ(second.wait(), 1);
    const std::string message = second.err();
    EXPECT_NE(message.find("process " + std::to_string(owner.pid()) + " (\"pollcored\""), std::string::npos) << message;
    EXPECT_NE(message.find("core " + std::to_string(last_cpu())), std::string::npos) << message;

    owner.signal(SIGTERM);
    EXPECT_EQ(owner.wait(), 0) << owner.err();
    Process third = start();
    EXPECT_TRUE(notify_.await("READY=1")) << "the core was not given up: " << third.err();
}

TEST_F(PollcoredTest, TwoShareACoreWhenTheSecondIsToldTo) {
    Process first = start();
    ASSERT_TRUE(notify_.await("READY=1")) << first.err();
    std::string text = config_text();
    text.insert(text.find("lock_directory"), "share_cores = true\n");
    Process second = run({"--config", directory_.write("second.toml", text).native()});
    EXPECT_TRUE(second.await_log("ready: 1 service")) << second.err();
}

TEST_F(PollcoredTest, AnotherLockDirectoryOnTheSameCoreIsAWarningThatNamesTheOther) {
    Process first = start();
    ASSERT_TRUE(notify_.await("READY=1")) << first.err();
    const TemporaryDirectory elsewhere;
    std::string text = config_text();
    const std::string here = directory_.path().native();
    text.replace(text.find(here), here.size(), elsewhere.path().native());
    Process second = run({"--config", directory_.write("second.toml", text).native()});
    EXPECT_TRUE(second.await_log("ready: 1 service")) << second.err();
    EXPECT_NE(second.err().find("process " + std::to_string(first.pid()) + " \"pollcored\" of user " +
                                std::to_string(::geteuid())),
              std::string::npos)
        << second.err();
}

TEST_F(PollcoredTest, ADaemonThatWasKilledLeavesItsCoreFree) {
    Process killed = start();
    ASSERT_TRUE(notify_.await("READY=1")) << killed.err();
    killed.signal(SIGKILL);
    ASSERT_EQ(killed.wait(), 128 + SIGKILL);
    Process next = start();
    EXPECT_TRUE(notify_.await("READY=1")) << next.err();
}

// ---- Watchdog ----

// Long enough for a worker that waits for its CPU on a busy machine.
constexpr const char* kPatientWatchdog = "WATCHDOG_USEC=4000000";

TEST_F(PollcoredTest, TheWatchdogIsFedAgainAndAgain) {
    Process daemon = start({"WATCHDOG_USEC=1000000"});
    ASSERT_TRUE(notify_.await("READY=1")) << daemon.err();
    for (int i = 0; i < 4; ++i) {
        ASSERT_TRUE(notify_.await("WATCHDOG=1")) << "meal " << i << ": " << daemon.err();
    }
}

TEST_F(PollcoredTest, WithoutAWatchdogNoneIsFed) {
    Process daemon = start();
    ASSERT_TRUE(notify_.await("READY=1")) << daemon.err();
    EXPECT_EQ(notify_.await("WATCHDOG=1", 800ms), std::nullopt);
}

TEST_F(PollcoredTest, AWorkerThatSleepsLetsTheWatchdogBeFed) {
    std::string text = config_text();
    const std::string idle = "idle = \"yield\"";
    text.replace(text.find(idle), idle.size(), "idle = \"event\"");
    Process daemon = start_with(directory_.write("sleeps.toml", text), {kPatientWatchdog});
    ASSERT_TRUE(notify_.await("READY=1")) << daemon.err();
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(notify_.await("WATCHDOG=1")) << daemon.err();
    }
    EXPECT_EQ(daemon.err().find("made no step"), std::string::npos) << daemon.err();
}

// Stops one thread, as a debugger does. The thread then looks like a thread in a call that does not return.
class Halted {
public:
    explicit Halted(pid_t thread) : thread_(thread) {
        EXPECT_EQ(ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr), 0) << std::strerror(errno);
        EXPECT_EQ(ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr), 0) << std::strerror(errno);
        int status = 0;
        EXPECT_EQ(waitpid(thread_, &status, __WALL), thread_) << std::strerror(errno);
    }
    void let_go() const { EXPECT_EQ(ptrace(PTRACE_DETACH, thread_, nullptr, nullptr), 0) << std::strerror(errno); }

private:
    pid_t thread_;
};

TEST_F(PollcoredTest, AWorkerThatMakesNoStepStarvesTheWatchdog) {
    Process daemon = start({kPatientWatchdog});
    ASSERT_TRUE(notify_.await("READY=1")) << daemon.err();
    ASSERT_TRUE(notify_.await("WATCHDOG=1")) << daemon.err();
    ASSERT_TRUE(daemon.await_log("ready: 1 service")) << daemon.err();
    const std::string log = daemon.err();
    std::smatch match;
    ASSERT_TRUE(std::regex_search(log, match, std::regex("worker worker0: .*thread (\\d+)"))) << log;
    const pid_t worker = std::stoi(match[1]);

    const Halted halted(worker);
    const std::string who = "worker worker0 (thread " + match[1].str() + ") ";
    ASSERT_TRUE(daemon.await_log(": the watchdog is not fed")) << daemon.err();
    EXPECT_TRUE(
        std::regex_search(daemon.err(), std::regex("worker worker0 .thread \\d+. made no step for \\d+ ms: it hangs ")))
        << daemon.err();
    EXPECT_NE(daemon.err().find(who + "made no step"), std::string::npos) << daemon.err();
    while (notify_.receive(0ms)) {
    }
    EXPECT_EQ(notify_.await("WATCHDOG=1", 3s), std::nullopt) << "fed although a worker stands still";

    halted.let_go();
    EXPECT_TRUE(notify_.await("WATCHDOG=1")) << "not fed again";
    EXPECT_TRUE(daemon.await_log(who + "goes on")) << daemon.err();
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

/// Waits for a thread with this name, because a thread sets its name only when it first runs. Returns the thread's id,
/// or 0 if there is no such thread.
pid_t thread_named(pid_t pid, const std::string& name) {
    for (const auto until = std::chrono::steady_clock::now() + kPatience; std::chrono::steady_clock::now() < until;) {
        for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
            if (read_file(task.path() / "comm") == name + "\n") {
                return std::stoi(task.path().filename().native());
            }
        }
        std::this_thread::sleep_for(1ms);
    }
    return 0;
}

TEST_F(PollcoredTest, AThreadBesideTheWorkersThatHangsIsReportedAtOnceAndStarvesTheWatchdogAtTheHangLimit) {
    std::string text = config_text("[attach]\npath = \"" + (directory_.path() / "attach.sock").native() + "\"\n");
    text.insert(text.find("[[device]]"), "hang_limit = \"6s\"\n");
    const std::filesystem::path config = directory_.write("hangs.toml", text);
    for (const std::string name : {"pollcore-ctl", "pollcore-serve"}) {
        SCOPED_TRACE(name);
        Process daemon = start_with(config, {kPatientWatchdog});
        ASSERT_TRUE(notify_.await("READY=1")) << daemon.err();
        ASSERT_TRUE(notify_.await("WATCHDOG=1")) << daemon.err();
        const pid_t thread = thread_named(daemon.pid(), name);
        ASSERT_NE(thread, 0);
        const Halted halted(thread);

        const std::string who = "thread " + name + " (thread " + std::to_string(thread) + ") ";
        const auto says = [&](const std::string& what) {
            return std::regex_search(
                daemon.err(),
                std::regex("thread " + name + " .thread \\d+. has been busy with one thing for \\d+ ms: " + what));
        };
        ASSERT_TRUE(daemon.await_log(who + "has been busy with one thing for ")) << daemon.err();
        EXPECT_TRUE(says("it hangs in the system call ")) << daemon.err();
        while (notify_.receive(0ms)) {
        }
        EXPECT_TRUE(notify_.await("WATCHDOG=1")) << "a restart would end what still goes on";
        EXPECT_FALSE(says("the watchdog is not fed")) << daemon.err();
        EXPECT_TRUE(daemon.await_log("no backtrace: thread " + std::to_string(thread))) << daemon.err();

        // Takes all messages, because otherwise the daemon would wait for room in the socket.
        const auto patience = std::chrono::steady_clock::now() + kPatience;
        while (!says("the watchdog is not fed")) {
            std::this_thread::sleep_for(10ms);
            ASSERT_LT(std::chrono::steady_clock::now(), patience) << daemon.err();
            while (notify_.receive(0ms)) {
            }
        }
        while (notify_.receive(0ms)) {
        }
        EXPECT_EQ(notify_.await("WATCHDOG=1", 3s), std::nullopt) << "fed for longer than the hang limit";

        halted.let_go();
        EXPECT_TRUE(notify_.await("WATCHDOG=1")) << "not fed again";
        EXPECT_TRUE(daemon.await_log(who + "goes on")) << daemon.err();
        daemon.signal(SIGTERM);
        EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    }
}

// ---- Threads ----

struct Thread {
    pid_t id = 0;
    std::string cpus;         // Cpus_allowed_list
    std::uint64_t ticks = 0;  // CPU time in ticks, user and kernel
};

std::vector<Thread> threads_of(pid_t pid) {
    std::vector<Thread> threads;
    const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
        Thread thread;
        thread.id = std::stoi(task.path().filename().native());
        const std::string status = read_file(task.path() / "status");
        std::smatch match;
        if (std::regex_search(status, match, std::regex("Cpus_allowed_list:\\s*(\\S+)"))) {
            thread.cpus = match[1];
        }
        // Parses after the name in parentheses: state is field 3, utime and stime are 14 and 15.
        const std::string stat = read_file(task.path() / "stat");
        std::istringstream fields(stat.substr(stat.rfind(')') + 1));
        std::string field;
        for (int i = 3; i <= 15 && fields >> field; ++i) {
            thread.ticks += i >= 14 ? std::stoull(field) : 0;
        }
        threads.push_back(thread);
    }
    return threads;
}

TEST_F(PollcoredTest, OnlyTheWorkerRunsOnItsCoreAndTheOthersIdle) {
    Process daemon = start();
    ASSERT_TRUE(notify_.await("READY=1")) << daemon.err();
    std::this_thread::sleep_for(200ms);  // lets the rest of the start finish
    const std::vector<Thread> before = threads_of(daemon.pid());
    constexpr auto kTime = 1s;
    std::this_thread::sleep_for(kTime);
    const std::vector<Thread> after = threads_of(daemon.pid());

    const std::string core = std::to_string(last_cpu());
    EXPECT_EQ(std::count_if(after.begin(), after.end(), [&](const Thread& t) { return t.cpus == core; }), 1);
    std::uint64_t ticks = 0;
    for (const Thread& thread : after) {
        if (thread.cpus == core) {
            continue;
        }
        const std::string listed = "," + thread.cpus + ",";
        EXPECT_FALSE(std::regex_search(listed, std::regex("[,-]" + core + "[,-]")))
            << "thread " << thread.id << " may run on CPUs " << thread.cpus;
        const auto then =
            std::find_if(before.begin(), before.end(), [&](const Thread& t) { return t.id == thread.id; });
        ticks += thread.ticks - (then != before.end() ? then->ticks : 0);
    }
    const auto whole = static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK)) * kTime.count();
    EXPECT_LT(ticks, whole / 5) << "of " << whole << " ticks of CPU time, used by threads that have nothing to do";
}

}  // namespace
}  // namespace pollcore::test
