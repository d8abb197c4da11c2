// An eventfd(2) that wakes who polls for it: whoever signals makes it readable, the one that it wakes drains it.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"

namespace pollcore {

/// Throws Error. `what_for` completes "cannot make an eventfd for ".
[[nodiscard]] inline UniqueFd make_event_fd(const char* what_for) {
    UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd.valid()) {
        throw Error(errno, std::string("cannot make an eventfd for ") + what_for);
    }
    return fd;
}

// Neither can fail on a descriptor that is one: the count is far from its end, and nothing to drain is no error here.
inline void signal_event(int fd) noexcept {
    const std::uint64_t one = 1;
    (void)!::write(fd, &one, sizeof(one));
}
/// False when nobody had signaled.
inline bool drain_event(int fd) noexcept {
    std::uint64_t count = 0;
    return ::read(fd, &count, sizeof(count)) == sizeof(count);
}

}  // namespace pollcore
