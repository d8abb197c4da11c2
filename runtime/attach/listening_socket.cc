#include "attach/listening_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "attach/credentials.hpp"
#include "base/log.hpp"
#include "pollcore/error.hpp"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // Linux 6.16
#endif

namespace pollcore {
namespace {

Error cannot_listen(std::string_view key, const std::filesystem::path& path, int error, const std::string& what) {
    return Error(error, fmt::format("{} = \"{}\": {}", key, path.native(), what));
}

// Removes the file that a killed daemon has left. The file may belong to the owner that the configuration names.
void remove_left_file(const SocketPlace& place) {
    const std::optional<struct stat> there = look_at(place.path);
    if (!there) {
        return;
    }
    if (!S_ISSOCK(there->st_mode)) {
        throw cannot_listen(place.key, place.path, EEXIST, "there is something else than a socket");
    }
    if (there->st_uid != ::geteuid() && there->st_uid != place.owner) {
        throw cannot_listen(
            place.key, place.path, EADDRINUSE,
            fmt::format("the socket there is user {}'s; remove it, or name another path", there->st_uid));
    }
    require_dead(place.path, place.key);
    if (!remove_only(place.path, SocketFile::of(*there))) {
        throw cannot_listen(place.key, place.path, EADDRINUSE, "another process has just made a socket there");
    }
}

}  // namespace

SocketPlace::SocketPlace(const AttachConfig& config)
    : key("attach.path"),
      path(config.path),
      owner(user_id(config.owner)),
      group(group_id(config.group)),
      mode(static_cast<mode_t>(config.mode)) {}

SocketPlace::SocketPlace(const ControlConfig& config)
    : key("control.path"),
      path(config.path),
      owner(user_id("")),
      group(group_id(config.group)),
      mode(config.group.empty() ? 0600 : 0660) {}

ListeningSocket::ListeningSocket(const SocketPlace& place)
    : key_(place.key), path_(place.path), socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const sockaddr_un address = socket_address(path_, key_);
    const auto fail = [&](int error, const char* what) { return cannot_listen(key_, path_, error, what); };
    if (!socket_.valid()) {
        throw fail(errno, "no socket");
    }
    remove_left_file(place);
    // At first the file has no permissions, so that no process connects before the file has its owner and mode.
    if (::fchmod(socket_.get(), 0) != 0 ||
        ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        throw fail(errno, "cannot be made; does its directory exist, and may this user write there?");
    }
    const std::optional<struct stat> made = look_at(path_);
    if (!made) {
        throw fail(errno, "was removed while it was made");
    }
    file_ = SocketFile::of(*made);
    const int no = 0;  // the kernel refuses descriptors of unattached processes, if it can
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
    try {
        // Sets the mode before lchown(): a process that may give a file to another user may not change its mode after
        // that.
        if (::chmod(path_.c_str(), place.mode) != 0) {
            throw fail(errno, "cannot have this mode");
        }
        // If another process has put a link there meanwhile, lchown() changes the link itself.
        const bool given_away = place.owner != static_cast<uid_t>(-1) || place.group != static_cast<gid_t>(-1);
        if (given_away && ::lchown(path_.c_str(), place.owner, place.group) != 0) {
            throw fail(errno, "cannot be given to its owner and group; that needs CAP_CHOWN");
        }
        // The kernel refuses connections until listen().
        if (::listen(socket_.get(), SOMAXCONN) != 0) {
            throw fail(errno, "cannot be listened at");
        }
    } catch (...) {
        remove_own();
        throw;
    }
}

ListeningSocket::~ListeningSocket() {
    remove_own();
}

void ListeningSocket::remove_own() noexcept {
    if (standing() != Standing::own) {
        return;
    }
    try {
        (void)remove_only(path_, file_);
    } catch (const std::exception& error) {
        log_warning("{}", error.what());
    }
}

ListeningSocket::Standing ListeningSocket::standing() const noexcept {
    const std::optional<struct stat> there = look_at(path_);
    if (!there) {
        // If the file cannot be seen, it may still be there.
        return errno == ENOENT || errno == ENOTDIR ? Standing::nothing : Standing::own;
    }
    return SocketFile::of(*there) == file_ ? Standing::own : Standing::something_else;
}

ForeignFd ListeningSocket::accept() const noexcept {
    const int socket = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const int error = errno;
    ucred whose{.pid = 0, .uid = 0, .gid = 0};
    if (socket >= 0) {
        socklen_t length = sizeof(whose);
        // This works even if the process has ended already.
        (void)::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &whose, &length);
    }
    errno = error;
    return ForeignFd(socket, Unread::taken, whose.uid);
}

}  // namespace pollcore
