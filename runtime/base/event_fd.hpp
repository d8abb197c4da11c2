// An eventfd(2) that wakes who polls for it: whoever signals makes it readable, the one that it wakes drains it.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"

namespace pollcore {

/// Throws Error. `what_for` completes "cannot make an eventfd for ".
[[nodiscard]] inline UniqueFd make_event_fd(const char* what_for) {
    UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd.valid()) {
        throw Error(errno, std::string("cannot make an eventfd for ") + what_for);
    }
    return fd;
}

// Neither can fail on a descriptor that is one: the count is far from its end, and nothing to drain is no error here.
inline void signal_event(int fd) noexcept {
    const std::uint64_t one = 1;
    (void)!::write(fd, &one, sizeof(one));
}
// The same between processes that do not trust each other, over a pair of sockets: who has an eventfd can have the other side's
// write to it block, or take wake-ups that are not meant for it.
inline void signal_socket(int fd) noexcept {
    const char one = 1;
    (void)!::send(fd, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);  // when it is full, there is something to read
}
enum class Drained { nothing, something, closed };
/// Takes so much at most; what is left keeps it readable.
inline Drained drain_socket(int fd) noexcept {
    constexpr int kMost = 16;
    Drained drained = Drained::nothing;
    char some[16];
    for (int i = 0; i < kMost; ++i) {
        const auto got = ::recv(fd, some, sizeof(some), MSG_DONTWAIT);
        if (got <= 0) {
            return got == 0 ? Drained::closed : drained;
        }
        drained = Drained::something;
    }
    return drained;
}

/// All that stand in an epoll(7) with their numbers in data.u64. One whose other end is closed leaves it: it would be readable
/// for ever.
inline bool drain_sockets(int epoll) noexcept {
    epoll_event events[16];
    bool any = false;
    const int n = ::epoll_wait(epoll, events, 16, 0);
    for (int i = 0; i < n; ++i) {
        const int fd = static_cast<int>(events[i].data.u64);
        const Drained drained = drain_socket(fd);
        any = any || drained == Drained::something;
        if (drained == Drained::closed) {
            (void)::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr);
        }
    }
    return any;
}

/// False when nobody had signaled.
inline bool drain_event(int fd) noexcept {
    std::uint64_t count = 0;
    return ::read(fd, &count, sizeof(count)) == sizeof(count);
}

}  // namespace pollcore
