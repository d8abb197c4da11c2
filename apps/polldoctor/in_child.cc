#include "in_child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/unique_fd.hpp"
#include "read_until.hpp"

namespace pollcore::doctor {
namespace {

void write_all(int fd, std::string_view text) noexcept {
    while (!text.empty()) {
        const ssize_t written = ::write(fd, text.data(), text.size());
        if (written < 0 && errno != EINTR) {
            ::_exit(1);  // nobody reads any more
        }
        text.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
    }
}

}  // namespace

ChildAnswer in_child(const std::function<void(const std::function<void(std::string_view)>&)>& work,
                     std::chrono::milliseconds limit, std::size_t bytes_max) {
    const auto deadline = Clock::now() + limit;
    ChildAnswer answer;
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return answer;
    }
    const UniqueFd reading(ends[0]);
    UniqueFd writing(ends[1]);
    const pid_t child = ::fork();
    if (child == 0) {
        try {
            work([&](std::string_view text) { write_all(writing.get(), text); });
        } catch (...) {
            ::_exit(1);  // the parent sees the exit code
        }
        ::_exit(0);
    }
    writing.reset();
    if (child < 0) {
        return answer;
    }
    const bool to_the_end = read_until(reading.get(), answer.text, deadline, bytes_max);
    if (!to_the_end) {
        (void)::kill(child, SIGKILL);
        (void)::waitpid(child, nullptr, WNOHANG);
        return answer;
    }
    // The end of the child may wait for firmware, too, when the kernel closes what the child has open.
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(child, &status, WNOHANG)) == 0 && Clock::now() < deadline) {
        (void)::poll(nullptr, 0, 1);
    }
    answer.whole = ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return answer;
}

}  // namespace pollcore::doctor
