#include "attach/packet_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/passed_descriptors.hpp"
#include "pollcore/error.hpp"

namespace pollcore::wire {

int send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) noexcept {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control{};
    if (!descriptors.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
        cmsghdr* beside = CMSG_FIRSTHDR(&message);
        beside->cmsg_level = SOL_SOCKET;
        beside->cmsg_type = SCM_RIGHTS;
        beside->cmsg_len = CMSG_LEN(descriptors.size_bytes());
        std::memcpy(CMSG_DATA(beside), descriptors.data(), descriptors.size_bytes());
    }
    while (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (errno != EINTR) {
            return errno == EWOULDBLOCK ? EAGAIN : errno == ECONNRESET ? EPIPE : errno;
        }
    }
    return 0;
}

int recv_packet(int socket, Packet& into) {
    into = {};
    into.bytes.resize(kMessageMax + 1);
    into.descriptors.reserve(kDescriptorsPerMessage);
    iovec part{into.bytes.data(), into.bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsPerMessage * sizeof(int))> control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t got = 0;
    while ((got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
        // ECONNRESET: the other side closed its socket before it had read everything. The kernel reports this once,
        // before the packets that the other side has sent.
        if (errno != EINTR && errno != ECONNRESET) {
            return errno == EWOULDBLOCK ? EAGAIN : errno;
        }
    }
    // Takes the descriptors before any return, because a descriptor that is not taken would stay open.
    for_each_descriptor(message, [&into](int descriptor) { into.descriptors.emplace_back(descriptor); });
    if (got == 0) {
        return EPIPE;
    }
    into.truncated = (message.msg_flags & MSG_TRUNC) != 0 || static_cast<std::size_t>(got) > kMessageMax ||
                     into.descriptors.size() > kDescriptorsMax;
    into.descriptors_lost = (message.msg_flags & MSG_CTRUNC) != 0;
    into.bytes.resize(static_cast<std::size_t>(got));
    return 0;
}

UniqueFd connect_to(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof(address.sun_path)) {
        throw Error(ENAMETOOLONG, "attaching to \"" + path + "\": a socket's path has 1 to " +
                                      std::to_string(sizeof(address.sun_path) - 1) + " characters");
    }
    std::memcpy(address.sun_path, path.c_str(), path.size());
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) {
        throw Error(errno, "attaching to " + path + ": no socket");
    }
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        const int error = errno;
        const char* hint = error == ENOENT || error == ECONNREFUSED
                               ? "; is the daemon running, and its [attach] section's path this?"
                           : error == EACCES ? "; the socket's owner, group and mode say who may"
                           : error == EAGAIN ? "; too many attach at the same time"
                                             : "";
        throw Error(error, "attaching to " + path + hint);
    }
    return socket;
}

}  // namespace pollcore::wire
