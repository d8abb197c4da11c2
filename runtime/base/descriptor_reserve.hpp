// Descriptors that other processes do not use up: what must go on when there are few left (reading a configuration
// again, asking /proc who somebody is, replacing a completion channel) has these.
//
// Thread safety: any thread.
#pragma once

#include <sys/resource.h>

namespace pollcore {

inline constexpr rlim_t kDescriptorsReserved = 32;

/// Whether a descriptor that the kernel gave for another process is one of the last that this process may have: the
/// kernel gives the lowest that is free (open(2)). Who asks gives it back, and refuses what it was for with EMFILE.
[[nodiscard]] inline bool is_reserved(int fd) noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return false;
    }
    return fd >= 0 && static_cast<rlim_t>(fd) + kDescriptorsReserved >= limit.rlim_cur;
}

}  // namespace pollcore
