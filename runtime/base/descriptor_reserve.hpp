// A reserve of descriptors that other processes cannot use up. It is for work that must go on when few descriptors are
// left: reading a configuration again, asking /proc about a process, replacing a completion channel.
//
// Thread safety: any thread.
#pragma once

#include <sys/resource.h>

namespace pollcore {

inline constexpr rlim_t kDescriptorsReserved = 32;

/// Returns true if `fd`, which was opened for another process, is one of the last descriptors that this process may
/// have. (The kernel always gives the lowest free number, open(2).) Then the caller closes `fd` and refuses the other
/// process's request with EMFILE.
[[nodiscard]] inline bool is_reserved(int fd) noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return false;
    }
    return fd >= 0 && static_cast<rlim_t>(fd) + kDescriptorsReserved >= limit.rlim_cur;
}

}  // namespace pollcore
