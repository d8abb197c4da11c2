// A socket at which other processes connect: a path with an owner, a group and a mode (unix(7)).
//
// Another process may put a file at the path, before or after the socket is made. Before the socket is made, only a
// socket file of the daemon's user or of the configured owner is removed, and only if an attempt to connect proves that
// no process uses it. Afterwards, only the socket's own file is removed.
//
// Thread safety: one thread.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string_view>

#include "attach/socket_file.hpp"
#include "base/foreign_fd.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

/// The path, owner, group and mode of the socket. User and group are numbers.
struct SocketPlace {
    std::string_view key;  ///< the configuration's key for the path, for messages
    std::filesystem::path path;
    uid_t owner;  ///< -1: the daemon's user
    gid_t group;  ///< -1: the daemon's group
    mode_t mode;

    /// Throws Error(EINVAL) for a user or group that this machine does not know.
    explicit SocketPlace(const AttachConfig& config);
    /// Only the daemon's user may connect, and the members of the group if the configuration names one.
    explicit SocketPlace(const ControlConfig& config);
};

/// The socket listens from its construction on. The destructor removes the socket's file.
class ListeningSocket {
public:
    /// What is at the path: this socket's file, nothing, or another file.
    enum class Standing { own, nothing, something_else };

    /// Replaces the file that a killed daemon has left at the path. Throws Error: EEXIST if a file at the path is no
    /// socket, EADDRINUSE if a socket at the path may be alive or is another user's, or the kernel's error.
    explicit ListeningSocket(const SocketPlace& place);
    ~ListeningSocket();
    ListeningSocket(const ListeningSocket&) = delete;
    ListeningSocket& operator=(const ListeningSocket&) = delete;

    [[nodiscard]] int fd() const noexcept { return socket_.get(); }
    /// Returns the socket of the next process that connects, and does not wait. If no process waits (EAGAIN), or
    /// accept4(2) fails, the result is invalid, and errno is set.
    [[nodiscard]] ForeignFd accept() const noexcept;
    [[nodiscard]] Standing standing() const noexcept;

private:
    void remove_own() noexcept;

    const std::string_view key_;
    const std::filesystem::path path_;
    UniqueFd socket_;
    SocketFile file_;
};

}  // namespace pollcore
