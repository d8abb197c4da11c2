// The socket at which processes attach: a path with an owner, a group and a mode (unix(7)).
#pragma once

#include <filesystem>

#include "base/foreign_fd.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

/// Listens from its construction on; the path goes with this object.
class ListeningSocket {
public:
    /// Replaces what a daemon that was killed has left there. Throws Error: somebody listens there, or it is no socket.
    explicit ListeningSocket(const AttachConfig& config);
    ~ListeningSocket();
    ListeningSocket(const ListeningSocket&) = delete;
    ListeningSocket& operator=(const ListeningSocket&) = delete;

    [[nodiscard]] int fd() const noexcept { return socket_.get(); }
    /// Of the next one who connects; invalid with errno: nobody does (EAGAIN), or it cannot be had. Does not wait.
    [[nodiscard]] ForeignFd accept() const noexcept;

private:
    std::filesystem::path path_;
    UniqueFd socket_;
};

}  // namespace pollcore
