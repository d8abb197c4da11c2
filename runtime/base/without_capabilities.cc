#include "base/without_capabilities.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

constexpr std::uint32_t kKept = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;

__user_cap_header_struct this_thread() noexcept {
    return {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
}

}  // namespace

WithoutCapabilities::WithoutCapabilities() {
    __user_cap_header_struct header = this_thread();
    if (::syscall(SYS_capget, &header, before_.data()) != 0) {
        throw Error(errno, "asking for this thread's capabilities (capget)");
    }
    Sets reduced = before_;
    reduced[0].effective &= kKept;
    reduced[1].effective = 0;
    if (::syscall(SYS_capset, &header, reduced.data()) != 0) {
        throw Error(errno, "giving this thread's capabilities up for a while (capset)");
    }
}

WithoutCapabilities::~WithoutCapabilities() {
    __user_cap_header_struct header = this_thread();
    if (::syscall(SYS_capset, &header, before_.data()) != 0) {
        log_error("a thread does not get its capabilities back (capset): {}", std::strerror(errno));
    }
}

}  // namespace pollcore
