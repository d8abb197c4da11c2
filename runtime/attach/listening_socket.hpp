// The socket at which processes attach: a path with an owner, a group and a mode (unix(7)).
//
// Others may have put something of theirs at the path, before the socket is made or after. A file there is removed only
// if it is the daemon's own and connecting proves that its socket is dead.
//
// Thread safety: one thread.
#pragma once

#include <sys/types.h>

#include <filesystem>

#include "attach/socket_file.hpp"
#include "base/foreign_fd.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

/// Where processes attach, with users and groups as numbers.
struct SocketPlace {
    std::filesystem::path path;
    uid_t owner;  ///< -1: the daemon's user
    gid_t group;  ///< -1: the daemon's group
    mode_t mode;

    /// Throws Error(EINVAL) for a user or group that this machine does not know.
    explicit SocketPlace(const AttachConfig& config);
};

/// Listens from its construction on; its file is removed with this object.
class ListeningSocket {
public:
    /// The file at the path.
    enum class Standing { own, nothing, something_else };

    /// Replaces the file that a killed daemon has left there. Throws Error: EEXIST if something other than a socket is
    /// there, EADDRINUSE if a socket is there that is not proved to be dead and the daemon's, or the kernel's error.
    explicit ListeningSocket(const SocketPlace& place);
    ~ListeningSocket();
    ListeningSocket(const ListeningSocket&) = delete;
    ListeningSocket& operator=(const ListeningSocket&) = delete;

    [[nodiscard]] int fd() const noexcept { return socket_.get(); }
    /// The socket of the next process that connects. Invalid, with errno: nobody waits (EAGAIN), or accepting failed.
    /// Does not wait.
    [[nodiscard]] ForeignFd accept() const noexcept;
    [[nodiscard]] Standing standing() const noexcept;

private:
    void remove_own() noexcept;

    const std::filesystem::path path_;
    UniqueFd socket_;
    SocketFile file_;
};

}  // namespace pollcore
