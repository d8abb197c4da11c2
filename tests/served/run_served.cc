// The main() of GoogleTest programs that test libpollcore-verbs.so themselves: it starts a pollcored on a software
// device, and then this program again, with the library preloaded. So the tests find the device soft0.
//
// The program fails also if the daemon has ended the attachment of a test, or does not end as it should.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "attach/daemon_fixture.hpp"
#include "preloaded.hpp"
#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

int run_again(const std::string& socket, char** argv) {
    const pid_t child = ::fork();
    if (child == 0) {
        (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::setenv("LD_PRELOAD", preloaded().c_str(), 1);
        ::setenv("POLLCORE_SOCKET", socket.c_str(), 1);
        ::setenv("POLLCORE_TEST_VERBS", "soft0", 1);
        // Many calls are refused on purpose.
        ::setenv("POLLCORE_VERBS_LOG", "off", 0);
        ::execv(std::filesystem::read_symlink("/proc/self/exe").c_str(), argv);
        std::perror("execv");
        ::_exit(127);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) {
        std::perror("waitpid");
        return 1;
    }
    if (WIFSIGNALED(status)) {
        std::printf("the tests were ended by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
        return 128 + WTERMSIG(status);
    }
    return WEXITSTATUS(status);
}

int run_beside_daemon(char** argv) {
    const TemporaryDirectory directory;
    Config config = daemon_config(directory.path());
    config.devices[0].name = "soft0";
    config.attach.own_memory.all = true;
    // The tests run in one thread, and the worker should not take its CPU while it waits.
    config.workers[0].idle = {{.policy = IdlePolicy::spin, .time = 20us}, {.policy = IdlePolicy::event}};
    config.workers[0].cq_depth = 16384;  // for a chain of thousands
    config.log_level = LogLevel::info;
    Process daemon({"/usr/bin/setpriv", "--pdeathsig", "KILL", pollcored_path(), "--config",
                    directory.write("pollcored.toml", print_config(config)).string()},
                   {}, directory.path());
    while (!daemon.await_log("ready:", 2ms)) {
        if (daemon.wait(0ms)) {
            std::printf("pollcored has ended: %s\n", daemon.err().c_str());
            return 1;
        }
    }
    int result = run_again(config.attach.path, argv);
    (void)::kill(daemon.pid(), SIGTERM);
    if (const auto code = daemon.wait(); code != 0) {
        std::printf("pollcored ended with %d: %s\n", code.value_or(-1), daemon.err().c_str());
        result = 1;
    }
    if (daemon.err().find(", 0 were ended") == std::string::npos) {
        std::printf("pollcored has ended an attachment: %s\n", daemon.err().c_str());
        result = 1;
    }
    return result;
}

}  // namespace
}  // namespace pollcore::test

int main(int argc, char** argv) {
    try {
        if (!pollcore::test::is_served()) {
            return pollcore::test::run_beside_daemon(argv);
        }
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
