// An eventfd(2) that wakes the thread which polls it. signal_event() makes the eventfd readable, and the woken thread
// calls drain_event().
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

// signal_event() and drain_event() cannot fail: the eventfd's count is far below its limit, and an empty eventfd is no
// error here.
inline void signal_event(int fd) noexcept {
    const std::uint64_t one = 1;
    (void)!::write(fd, &one, sizeof(one));
}

// ---- Between processes that do not trust each other ----
//
// A worker wakes an application over a pair of sockets. The worker only sends to its own end of the pair. An eventfd
// would not do: the application could clear O_NONBLOCK and fill the eventfd, and the worker's write would block.
// Nothing can be sent to the worker's end (make_bell_sockets()). A message could bring a descriptor, and closing that
// descriptor may wait for as long as the application likes.
//
// An application wakes a worker by an eventfd. The worker neither reads nor writes this eventfd. It has the eventfd in
// an epoll(7) instance that reports each write once (EPOLLET). A pipe would not do: a process can write to a pipe from
// memory whose pages never arrive. Meanwhile this process holds the pipe's mutex, and a reader of the pipe waits for
// the mutex.

struct BellSockets {
    UniqueFd own;    ///< the worker's end, which only sends
    UniqueFd other;  ///< the application's end, which only receives
};
/// Throws Error. `what_for` completes "cannot make sockets for ".
[[nodiscard]] inline BellSockets make_bell_sockets(const char* what_for) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        throw Error(errno, std::string("cannot make sockets for ") + what_for);
    }
    BellSockets made{UniqueFd(ends[0]), UniqueFd(ends[1])};
    // This also shuts down sending at the other end (unix(7)): a send there fails with EPIPE from now on.
    if (::shutdown(made.own.get(), SHUT_RD) != 0) {
        throw Error(errno, std::string("cannot close one direction of the sockets for ") + what_for);
    }
    return made;
}
inline void signal_socket(int fd) noexcept {
    const char one = 1;
    (void)!::send(fd, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);  // a full socket is readable already
}
/// Takes at most kMost messages from the receiving end `fd`. If more messages are left, `fd` stays readable.
inline void drain_socket(int fd) noexcept {
    constexpr int kMost = 16;
    char some[16];
    for (int i = 0; i<kMost&& ::recv(fd, some, sizeof(some), MSG_DONTWAIT)> 0; ++i) {
    }
}

/// Adds `fd`, an eventfd by which another process wakes a worker, to `epoll`, the worker's epoll(7) instance. Throws
/// Error.
inline void watch_visitor(int epoll, int fd) {
    epoll_event written{.events = EPOLLIN | EPOLLET, .data = {.fd = fd}};
    if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &written) != 0) {
        throw Error(errno, "a session of another process cannot wake its worker");
    }
}
/// Returns true if `epoll` has an event, because an eventfd was written. One call takes the events of up to 16
/// eventfds.
inline bool visitor_came(int epoll) noexcept {
    epoll_event events[16];
    return ::epoll_wait(epoll, events, 16, 0) > 0;
}

/// Empties the eventfd. Returns false if it was empty, because no thread had signaled it.
inline bool drain_event(int fd) noexcept {
    std::uint64_t count = 0;
    return ::read(fd, &count, sizeof(count)) == sizeof(count);
}

}  // namespace pollcore
