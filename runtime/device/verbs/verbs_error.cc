#include "device/verbs/verbs_error.hpp"

#include <sys/resource.h>

#include <fmt/format.h>

namespace pollcore {
namespace {

std::string locked_memory_hint() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        return "the limit of locked memory (ulimit -l) may be too low";
    }
    if (limit.rlim_cur == RLIM_INFINITY) {
        return "locked memory (RLIMIT_MEMLOCK) is not limited here, so the machine or the device is out of "
               "memory for it";
    }
    return fmt::format(
        "the limit of locked memory (RLIMIT_MEMLOCK, ulimit -l) is {} bytes: raise it (LimitMEMLOCK=infinity "
        "in "
        "a systemd unit, memlock in /etc/security/limits.conf)",
        limit.rlim_cur);
}

std::string hint(int errno_value) {
    switch (errno_value) {
        case ENOMEM: return "; " + locked_memory_hint();
        case EACCES:
        case EPERM: return "; the program needs to read and write /dev/infiniband/* (ls -l shows who may)";
        case ENODEV:
        case EIO: return "; the device may have been removed";
        default: return {};
    }
}

}  // namespace

// std::system_error appends the text of the errno value to this text. So the hint comes before that text.
Error verbs_error(int errno_value, const std::string& what) {
    return Error(errno_value, what + hint(errno_value));
}

}  // namespace pollcore
