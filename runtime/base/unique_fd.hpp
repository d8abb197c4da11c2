// A file descriptor with one owner, closed when the owner goes.
//
// Thread safety: none of its own; the owner's.
#pragma once

#include <unistd.h>

#include <utility>

namespace pollcore {

class UniqueFd {
public:
    UniqueFd() noexcept = default;
    /// Takes what a system call returned; a negative value is no descriptor.
    explicit UniqueFd(int fd) noexcept : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        reset(std::exchange(other.fd_, -1));
        return *this;
    }
    ~UniqueFd() { reset(); }

    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    void reset(int fd = -1) noexcept {
        const int old = std::exchange(fd_, fd);
        if (old >= 0) {
            // Nothing can be done about an error: Linux has closed the descriptor whatever close() says.
            (void)::close(old);
        }
    }

private:
    int fd_ = -1;
};

}  // namespace pollcore
