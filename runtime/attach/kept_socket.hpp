// A listening socket whose file comes back if somebody removes it. A program that clears old files may remove the file,
// and then no process finds the daemon.
//
// Thread safety: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "attach/listening_socket.hpp"
#include "base/foreign_fd.hpp"

namespace pollcore {

class KeptSocket {
public:
    using Clock = std::chrono::steady_clock;
    /// look() checks the file this often.
    static constexpr std::chrono::seconds kLookEvery{1};

    /// Listens at `place`. Throws as ListeningSocket. `what` begins the log lines: "attach".
    KeptSocket(SocketPlace place, std::string what);

    /// The descriptor to wait for. look() may replace it.
    [[nodiscard]] int fd() const noexcept { return socket_->fd(); }
    /// As ListeningSocket::accept().
    [[nodiscard]] ForeignFd accept() const noexcept { return socket_->accept(); }

    /// Call this at least every kLookEvery. If the file is gone, makes a new socket: first calls `accept_waiting`,
    /// which accepts the connections that wait at the old socket, and then `use` with the new socket's descriptor. If
    /// `use` throws an Error, the next look tries again.
    void look(Clock::time_point now, const std::function<void()>& accept_waiting,
              const std::function<void(int fd)>& use);

private:
    const SocketPlace place_;
    const std::string what_;
    std::unique_ptr<ListeningSocket> socket_;
    Clock::time_point next_look_{};
    ListeningSocket::Standing stood_ = ListeningSocket::Standing::own;  // the state of the file at the last look
    std::string why_not_anew_;  // the last logged reason why the socket cannot be made again
};

}  // namespace pollcore
