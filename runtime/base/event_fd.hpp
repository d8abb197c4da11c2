// An eventfd(2) that wakes a thread which polls for it. Signaling makes it readable, and the woken thread drains it.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

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

// Signaling and draining cannot fail on an eventfd: its count is far from its limit, and an empty one is no error here.
inline void signal_event(int fd) noexcept {
    const std::uint64_t one = 1;
    (void)!::write(fd, &one, sizeof(one));
}

// ---- Between processes that do not trust each other ----
//
// A worker wakes an application over a pair of sockets, and only ever sends to its own end. An eventfd would not do:
// its other holder could clear O_NONBLOCK and fill it, and the worker's write would block. Nothing can be sent the
// other way (make_bell_sockets()): closing a descriptor that was passed along may wait for as long as its owner likes.
// An application wakes a worker by an eventfd, which the worker neither reads nor writes: it is in an epoll(7) that
// tells of each write once (EPOLLET). A pipe would not do: a process that writes to it from memory whose pages do not
// come holds its mutex, and a reader waits for that.

struct BellSockets {
    UniqueFd own;    ///< sends
    UniqueFd other;  ///< receives
};
/// Throws Error. `what_for` completes "cannot make sockets for ".
[[nodiscard]] inline BellSockets make_bell_sockets(const char* what_for) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        throw Error(errno, std::string("cannot make sockets for ") + what_for);
    }
    BellSockets made{UniqueFd(ends[0]), UniqueFd(ends[1])};
    // This shuts down the other end's sending, too (unix(7)): its sends fail with EPIPE from now on.
    if (::shutdown(made.own.get(), SHUT_RD) != 0) {
        throw Error(errno, std::string("cannot close one direction of the sockets for ") + what_for);
    }
    return made;
}
inline void signal_socket(int fd) noexcept {
    const char one = 1;
    (void)!::send(fd, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);  // a full socket is readable anyway
}
/// For the receiving end. Takes at most kMost messages; the socket stays readable if more are left.
inline void drain_socket(int fd) noexcept {
    constexpr int kMost = 16;
    char some[16];
    for (int i = 0; i<kMost&& ::recv(fd, some, sizeof(some), MSG_DONTWAIT)> 0; ++i) {
    }
}

/// Puts an eventfd of another process into an epoll of those that wake a worker. Throws Error.
inline void watch_visitor(int epoll, int fd) {
    epoll_event written{.events = EPOLLIN | EPOLLET, .data = {.fd = fd}};
    if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &written) != 0) {
        throw Error(errno, "a session of another process cannot wake its worker");
    }
}
/// Whether an eventfd in `epoll` was written since the last call. A call takes up to 16 of them.
inline bool visitor_came(int epoll) noexcept {
    epoll_event events[16];
    return ::epoll_wait(epoll, events, 16, 0) > 0;
}

/// False when nobody had signaled.
inline bool drain_event(int fd) noexcept {
    std::uint64_t count = 0;
    return ::read(fd, &count, sizeof(count)) == sizeof(count);
}

}  // namespace pollcore
