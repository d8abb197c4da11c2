// Reads what a child process writes into a pipe.
//
// Thread safety: any thread.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>

namespace pollcore::doctor {

using Clock = std::chrono::steady_clock;

/// Reads until the end, the deadline, or `bytes_max`. Returns whether the end came.
[[nodiscard]] inline bool read_until(int fd, std::string& text, Clock::time_point deadline, std::size_t bytes_max) {
    std::array<char, 65536> part{};
    while (text.size() < bytes_max) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
        pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
        const int ready = left > 0 ? ::poll(&wait, 1, static_cast<int>(left)) : 0;
        if (ready < 0 && errno == EINTR) {
            continue;
        }
        if (ready <= 0) {
            return false;
        }
        const ssize_t got = ::read(fd, part.data(), std::min(part.size(), bytes_max - text.size()));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return true;
        }
        text.append(part.data(), static_cast<std::size_t>(got));
    }
    return false;
}

}  // namespace pollcore::doctor
