#include "attach/listening_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "attach/credentials.hpp"
#include "pollcore/error.hpp"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // Linux 6.16
#endif

namespace pollcore {
namespace {

sockaddr_un address_of(const std::filesystem::path& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string text = path.string();
    if (text.empty() || text.size() >= sizeof(address.sun_path)) {
        throw Error(ENAMETOOLONG, fmt::format("attach.path = \"{}\": a socket's path has 1 to {} characters", text,
                                              sizeof(address.sun_path) - 1));
    }
    std::memcpy(address.sun_path, text.c_str(), text.size());
    return address;
}

// Whether somebody listens there now; if not, what a daemon that was killed has left.
bool is_served(const sockaddr_un& address) {
    const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN;
}

UniqueFd listen_at(const AttachConfig& config) {
    const sockaddr_un address = address_of(config.path);
    const auto fail = [&](int error, const char* what) {
        return Error(error, fmt::format("attach.path = \"{}\": {}", config.path.string(), what));
    };
    struct stat status {};
    if (::lstat(address.sun_path, &status) == 0) {
        if (!S_ISSOCK(status.st_mode)) {
            throw fail(EEXIST, "there is something else than a socket");
        }
        if (is_served(address)) {
            throw fail(EADDRINUSE, "another daemon listens there");
        }
        (void)::unlink(address.sun_path);
    }
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) {
        throw fail(errno, "no socket");
    }
    if (::fchmod(socket.get(), 0) != 0 ||
        ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        throw fail(errno, "cannot be made; does its directory exist?");
    }
    const int no = 0;  // whoever is not attached passes no descriptors, where the kernel knows how
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
    try {
        // As long as it is this process's: who may give a file away may not, for that alone, change another's.
        if (::chmod(address.sun_path, static_cast<mode_t>(config.mode)) != 0) {
            throw fail(errno, "cannot have this mode");
        }
        // Of the link itself, should somebody have put one there meanwhile.
        if ((!config.owner.empty() || !config.group.empty()) &&
            ::lchown(address.sun_path, user_id(config.owner), group_id(config.group)) != 0) {
            throw fail(errno, "cannot be given to its owner and group; that needs CAP_CHOWN");
        }
        // Until here whoever connects is refused by the kernel.
        if (::listen(socket.get(), SOMAXCONN) != 0) {
            throw fail(errno, "cannot be listened at");
        }
    } catch (...) {
        (void)::unlink(address.sun_path);
        throw;
    }
    return socket;
}

}  // namespace

ListeningSocket::ListeningSocket(const AttachConfig& config) : path_(config.path), socket_(listen_at(config)) {}

ListeningSocket::~ListeningSocket() { (void)::unlink(path_.c_str()); }

ForeignFd ListeningSocket::accept() const noexcept {
    const int socket = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const int error = errno;
    ucred whose{.pid = 0, .uid = 0, .gid = 0};
    if (socket >= 0) {
        socklen_t length = sizeof(whose);
        (void)::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &whose, &length);  // of a process that has ended, too
    }
    errno = error;
    return ForeignFd(socket, Unread::taken, whose.uid);
}

}  // namespace pollcore
