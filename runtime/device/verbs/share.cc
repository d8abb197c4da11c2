// A context whose command descriptor is given to another process.
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "base/uverbs_command.hpp"
#include "device/verbs/verbs_device.hpp"

namespace pollcore {
namespace {

// Returns the number of the kernel's driver, which each ioctl must name. No interface tells it, so this function asks
// for the end of a region that does not exist: the kernel answers EINVAL as long as the number is wrong.
std::optional<std::uint32_t> find_driver(int fd) {
    constexpr std::uint32_t kDrivers = 64;
    for (std::uint32_t driver = 0; driver < kDrivers; ++driver) {
        constexpr std::uint32_t kNone = 0xffffffff;
        if (uverbs_dereg_mr(fd, driver, kNone) != EINVAL) {
            return driver;
        }
    }
    return std::nullopt;
}

}  // namespace

bool VerbsDevice::has_kernel() const noexcept {
    struct stat status {};
    if (::fstat(context_->cmd_fd, &status) != 0 || !S_ISCHR(status.st_mode)) {
        return false;
    }
    // Only the kernel's file of an RDMA device has this entry.
    std::array<char, 64> entry{};
    (void)std::snprintf(entry.data(), entry.size(), "/sys/dev/char/%u:%u/ibdev", major(status.st_rdev),
                        minor(status.st_rdev));
    return ::access(entry.data(), F_OK) == 0;
}

std::optional<SharedContext> VerbsDevice::share() {
    if (!has_kernel()) {
        return std::nullopt;
    }
    const std::optional<std::uint32_t> driver = find_driver(context_->cmd_fd);
    if (!driver) {
        throw Error(EOPNOTSUPP, fmt::format("the kernel's driver of RDMA device {} takes no commands by ioctl(2): own "
                                            "memory needs Linux 5.0 or later",
                                            name()));
    }
    shared_ = true;
    return SharedContext{.command_fd = context_->cmd_fd, .driver_id = *driver};
}

int VerbsDevice::destroyed(int error) const noexcept {
    const bool gone = shared_ && error == ENOENT;
    const bool left = let_go_ && error != EIO;
    return gone || left ? 0 : error;
}

}  // namespace pollcore
