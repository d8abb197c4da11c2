// A descriptor that came from another process, or that another process shares.
//
// Closing it may wait for as long as that process likes: a TCP socket with SO_LINGER and unsent data waits for the
// linger time (socket(7)), a file of a FUSE server for an answer to FLUSH, a Unix socket for what the descriptors in
// its queue wait for. So a thread that others wait for never closes one: a ForeignFd is closed on a thread that exists
// for this (disposal.hpp).
//
// Thread safety: none of its own; the owner's. The functions: any thread.
#pragma once

#include <utility>

#include "base/disposal.hpp"

namespace pollcore {

/// What closing does with messages that nobody has read.
enum class Unread {
    left,   ///< the descriptor is no socket of ours
    taken,  ///< the descriptor is the only one of a socket of ours: descriptors in the socket's queue are taken out, so
            ///< that none of them lingers
};

/// Closes on the calling thread, which may wait in it. A socket does not linger.
void close_here(int fd, Unread unread = Unread::left) noexcept;
/// Closes later, in turn with other descriptors of this user; returns at once. A socket of ours is shut down before
/// this returns.
void close_elsewhere(int fd, Unread unread, DisposalOwner user) noexcept;

class ForeignFd {
public:
    ForeignFd() noexcept = default;
    /// Takes what a system call returned; a negative value is no descriptor.
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
