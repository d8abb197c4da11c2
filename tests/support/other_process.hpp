// Lets a test run code in another process, and as another user.
//
// Thread safety: one thread.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"

namespace pollcore::test {

/// A forked process that does something and then waits until it is released or killed.
class OtherProcess {
public:
    /// Returns after the process has run `before_it_says_ready`.
    explicit OtherProcess(const std::function<void()>& before_it_says_ready) {
        int ready[2];
        int go[2];
        if (::pipe2(ready, O_CLOEXEC) != 0 || ::pipe2(go, O_CLOEXEC) != 0) {
            std::abort();
        }
        pid_ = ::fork();
        if (pid_ == 0) {
            go_.reset();
            ::close(go[1]);
            ::close(ready[0]);
            before_it_says_ready();
            (void)!::write(ready[1], "r", 1);
            char byte = 0;
            (void)!::read(go[0], &byte,
                          1);  // read() also returns at EOF, so the child ends soon after its parent
            ::_exit(0);
        }
        ::close(ready[1]);
        ::close(go[0]);
        go_.reset(go[1]);
        char byte = 0;
        EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "the other process ended early";
        ::close(ready[0]);
    }
    ~OtherProcess() {
        if (pid_ > 0) {
            go_.reset();
            wait();
        }
    }
    OtherProcess(const OtherProcess&) = delete;
    OtherProcess& operator=(const OtherProcess&) = delete;

    [[nodiscard]] pid_t pid() const { return pid_; }
    void kill() {
        ::kill(pid_, SIGKILL);
        wait();
    }

private:
    void wait() {
        int status = 0;
        EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
        pid_ = 0;
    }

    pid_t pid_ = 0;
    UniqueFd go_;
};

/// A user that no test runs as. Only root can become this user.
inline constexpr uid_t kOtherUser = 65534;

/// Makes this process run as the other user, or ends it.
inline void become_other_user() {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kOtherUser, kOtherUser, kOtherUser) != 0 ||
        ::setresuid(kOtherUser, kOtherUser, kOtherUser) != 0) {
        ::_exit(99);
    }
}

/// Runs `does` as the other user in a child process. Returns the function's result, 99 if the child cannot become that
/// user, or -1 if the child was killed.
[[nodiscard]] inline int as_other_user(const std::function<int()>& does) {
    const pid_t pid = ::fork();
    if (pid == 0) {
        become_other_user();
        ::_exit(does());
    }
    int status = 0;
    return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace pollcore::test
