// A descriptor that came from another process, or that another process shares.
//
// Closing such a descriptor may wait for as long as the other process likes. A TCP socket with SO_LINGER and unsent
// data waits for the linger time (socket(7)). A file of a FUSE server waits for the server's answer to FLUSH. A Unix
// socket waits while the descriptors in its queue are closed. So a thread that other threads wait for never closes such
// a descriptor: a dedicated thread closes the descriptor of a ForeignFd (disposal.hpp).
//
// Thread safety: ForeignFd has none; its owner must provide it. Any thread may call the functions.
#pragma once

#include <utility>

#include "base/disposal.hpp"

namespace pollcore {

/// The treatment of unread messages when a descriptor is closed.
enum class Unread {
    /// Closing ignores them. Use this for a descriptor that is no socket of this library.
    left,
    /// Closing takes the descriptors out of the socket's queue and closes them, so that none of them lingers. Use this
    /// for the only descriptor of a socket of this library.
    taken,
};

/// Closes `fd` on the calling thread, which may have to wait. If `fd` is a socket, closing does not linger.
void close_here(int fd, Unread unread = Unread::left) noexcept;
/// Has another thread close `fd` later, after the descriptors of `user` that were passed earlier. Returns at once. If
/// there is no memory, `fd` stays open. With Unread::taken, the socket is shut down before this function returns.
void close_elsewhere(int fd, Unread unread, DisposalOwner user) noexcept;

class ForeignFd {
public:
    ForeignFd() noexcept = default;
    /// `fd` is the result of a system call; a negative value is no descriptor.
    explicit ForeignFd(int fd, Unread unread = Unread::left, DisposalOwner user = 0) noexcept
        : fd_(fd), unread_(unread), user_(user) {}
    ForeignFd(ForeignFd&& other) noexcept
        : fd_(std::exchange(other.fd_, -1)), unread_(other.unread_), user_(other.user_) {}
    ForeignFd& operator=(ForeignFd&& other) noexcept {
        reset();
        fd_ = std::exchange(other.fd_, -1);
        unread_ = other.unread_;
        user_ = other.user_;
        return *this;
    }
    ~ForeignFd() { reset(); }

    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    void reset() noexcept {
        if (const int old = std::exchange(fd_, -1); old >= 0) {
            close_elsewhere(old, unread_, user_);
        }
    }

private:
    int fd_ = -1;
    Unread unread_ = Unread::left;
    DisposalOwner user_ = 0;
};

}  // namespace pollcore
