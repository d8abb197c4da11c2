#include "base/foreign_fd.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/passed_descriptors.hpp"

namespace pollcore {
namespace {

// Closes the descriptors in a socket's queue; if the kernel dropped them, they would linger. The socket is shut down,
// but its queue can still be read. recvmsg() returns 0 at the end, and also for a message of no bytes, which may bring
// descriptors; but a message comes with credentials, and the end does not.
void take_descriptors_out(int socket) noexcept {
    const int yes = 1;
    if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) != 0) {
        return;
    }
    std::array<char, 1> byte;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(kDescriptorsPerMessage * sizeof(int))>
        control;
    for (bool reset = false;;) {
        iovec part{byte.data(), byte.size()};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got < 0) {
            // ECONNRESET is reported once, when the other side has closed without having read all.
            if (errno != EINTR && (errno != ECONNRESET || std::exchange(reset, true))) {
                return;
            }
            continue;
        }
        // Closed here, one by one: if they were queued, each socket could add as many as its own queue holds.
        for_each_descriptor(message, [](int fd) { close_here(fd); });
        if (got == 0 && message.msg_controllen == 0) {
            return;
        }
    }
}

}  // namespace

void close_here(int fd, Unread unread) noexcept {
    if (unread == Unread::taken) {
        (void)::shutdown(fd, SHUT_RDWR);  // no more comes in
        take_descriptors_out(fd);
    }
    const linger none{.l_onoff = 0, .l_linger = 0};
    (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));  // fails on anything but a socket, without harm
    (void)::close(fd);
}

void close_elsewhere(int fd, Unread unread, DisposalOwner user) noexcept {
    if (unread == Unread::taken) {
        (void)::shutdown(fd, SHUT_RDWR);  // the other side learns of it at once, and no more comes in
    }
    try {
        dispose(user, [fd, unread] { close_here(fd, unread); });
    } catch (...) {
        // Without memory it stays open, which hurts less than waiting.
    }
}

}  // namespace pollcore
