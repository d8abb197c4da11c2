// A file descriptor with one owner. The owner's destructor closes it.
//
// Thread safety: none; the owner must provide it.
#pragma once

#include <unistd.h>

#include <utility>

namespace pollcore {

class UniqueFd {
public:
    UniqueFd() noexcept = default;
    /// `fd` is the result of a system call; a negative value is no descriptor.
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
            // Ignores an error, because Linux has closed the descriptor whatever close() returns.
            (void)::close(old);
        }
    }

private:
    int fd_ = -1;
};

}  // namespace pollcore
