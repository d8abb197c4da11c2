#include "run_program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "read_until.hpp"

namespace pollcore::doctor {
namespace {

constexpr int kLooksAfterKill = 100;  // in a second

/// Waits for the child until the deadline, then kills it. Returns its status.
int end_of(pid_t child, Clock::time_point deadline) {
    int status = 0;
    for (;;) {
        const pid_t ended = ::waitpid(child, &status, WNOHANG);
        if (ended == child || (ended < 0 && errno != EINTR)) {
            return status;
        }
        if (Clock::now() >= deadline) {
            break;
        }
        (void)::poll(nullptr, 0, 10);
    }
    (void)::kill(child, SIGKILL);
    // A child that waits in the kernel for a device cannot be killed, and nobody waits for it.
    for (int i = 0; i < kLooksAfterKill && ::waitpid(child, &status, WNOHANG) == 0; ++i) {
        (void)::poll(nullptr, 0, 10);
    }
    return status;
}

}  // namespace

std::string output_of(const std::vector<std::string>& command, std::chrono::milliseconds limit, std::size_t bytes_max) {
    const auto deadline = Clock::now() + limit;
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return fmt::format("(no pipe: {})\n", std::generic_category().message(errno));
    }
    const UniqueFd reading(ends[0]);
    UniqueFd writing(ends[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    std::vector<std::string> words = command;
    std::vector<char*> arguments;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    std::array<std::string, 2> variables{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"};
    std::array<char*, 3> environment{variables[0].data(), variables[1].data(), nullptr};
    pid_t child = 0;
    const int error =
        ::posix_spawn(&child, command.front().c_str(), &actions, nullptr, arguments.data(), environment.data());
    ::posix_spawn_file_actions_destroy(&actions);
    writing.reset();
    if (error != 0) {
        return fmt::format("({}: {})\n", command.front(), std::generic_category().message(error));
    }
    std::string text;
    const bool whole = read_until(reading.get(), text, deadline, bytes_max);
    const int status = end_of(child, whole ? deadline : Clock::now());
    if (!whole) {
        return text + fmt::format("\n({} was ended: it wrote more than {} bytes, or took longer than {} s)\n",
                                  command.front(), bytes_max, limit.count() / 1000);
    }
    if (WIFSIGNALED(status)) {
        text += fmt::format("\n({} failed: signal {} ended it)\n", command.front(), WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 0) {
        text += fmt::format("\n({} failed, with exit code {})\n", command.front(), WEXITSTATUS(status));
    }
    return text;
}

}  // namespace pollcore::doctor
