#include "base/foreign_fd.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/passed_descriptors.hpp"

namespace pollcore {
namespace {

// Closes the descriptors in a socket's queue. If the kernel closed these descriptors together with the socket, a socket
// among them might linger. The socket is shut down, but its queue can still be read. recvmsg() returns 0 at the end of
// the queue, and also for a message of no bytes, which may bring descriptors. The credentials tell the two apart: a
// message comes with credentials, and the end of the queue comes without.
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
            // The kernel reports ECONNRESET once if the other side closed its socket before it had read everything.
            if (errno != EINTR && (errno != ECONNRESET || std::exchange(reset, true))) {
                return;
            }
            continue;
        }
        // Closes each descriptor at once. If they were queued for later, each socket among them could add as many
        // descriptors as its own queue holds.
        for_each_descriptor(message, [](int fd) { close_here(fd); });
        if (got == 0 && message.msg_controllen == 0) {
            return;
        }
    }
}

}  // namespace

void close_here(int fd, Unread unread) noexcept {
    if (unread == Unread::taken) {
        (void)::shutdown(fd, SHUT_RDWR);  // no more messages come in
        take_descriptors_out(fd);
    }
    const linger none{.l_onoff = 0, .l_linger = 0};
    (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));  // fails without harm if `fd` is no socket
    (void)::close(fd);
}

void close_elsewhere(int fd, Unread unread, DisposalOwner user) noexcept {
    if (unread == Unread::taken) {
        (void)::shutdown(fd, SHUT_RDWR);  // the other side sees the end at once, and no more messages come in
    }
    try {
        dispose(user, [fd, unread] { close_here(fd, unread); });
    } catch (...) {
        // There is no memory. A descriptor that stays open does less harm than a caller that waits.
    }
}

}  // namespace pollcore
