// A descriptor that came from another process, or that another process shares.
//
// Closing it may wait for as long as that process likes: a TCP socket with SO_LINGER and unsent data waits for the linger time
// (socket(7)), a file of a FUSE server for an answer to FLUSH, a Unix socket for what the descriptors in its queue wait for. So whoever
// others wait for never closes one: a ForeignFd is closed on a thread that exists for that.
//
// Thread safety: ForeignFd none of its own; close_elsewhere() from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>

namespace pollcore {

/// What is done with messages that nobody has read.
enum class Unread {
    left,   ///< the descriptor is no socket of ours
    taken,  ///< it is the only one of a socket of ours: the descriptors in its queue are taken out, so that each is closed like this one
};

/// Closes `fd` on another thread; returns at once. A socket does not linger, and one of ours is shut down before this returns. Each descriptor that does not let go holds one thread, of
/// kClosersMax; what comes while all of them are held stays open until one is free.
void close_elsewhere(int fd, Unread unread = Unread::left) noexcept;
inline constexpr int kClosersMax = 16;
/// For who takes descriptors in: waits until no more than `most` wait to be closed, or for `within`. Without it they could be taken in
/// faster than they are closed, until this process has none left.
void let_closers_catch_up(std::size_t most, std::chrono::milliseconds within) noexcept;

class ForeignFd {
public:
    ForeignFd() noexcept = default;
    /// Takes what a system call returned; a negative value is no descriptor.
    explicit ForeignFd(int fd, Unread unread = Unread::left) noexcept : fd_(fd), unread_(unread) {}
    ForeignFd(ForeignFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), unread_(other.unread_) {}
    ForeignFd& operator=(ForeignFd&& other) noexcept {
        reset();
        fd_ = std::exchange(other.fd_, -1);
        unread_ = other.unread_;
        return *this;
    }
    ~ForeignFd() { reset(); }

    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    void reset() noexcept {
        if (const int old = std::exchange(fd_, -1); old >= 0) {
            close_elsewhere(old, unread_);
        }
    }

private:
    int fd_ = -1;
    Unread unread_ = Unread::left;
};

}  // namespace pollcore
