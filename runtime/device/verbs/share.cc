// A context whose command descriptor is given to another process.
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include <fmt/format.h>

#include "base/disposal.hpp"
#include "base/log.hpp"
#include "base/uverbs_command.hpp"
#include "device/verbs/verbs_device.hpp"
#include "device/verbs/verbs_error.hpp"

namespace pollcore {
namespace {

// Destroying an object takes milliseconds at most.
constexpr std::chrono::seconds kDestroyWithin{3};

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

int VerbsDevice::destroyed(int error) noexcept {
    const bool gone = shared_ && error == ENOENT;
    abused_ = abused_ || gone;
    const bool left = let_go_ && error != EIO;
    return gone || left ? 0 : error;
}

bool VerbsDevice::close_off(ibv_mr* mr) noexcept {
    const int error = verbs_result(ibv_dereg_mr(mr));
    (void)destroyed(error);
    return error == 0 || error == EIO || (shared_ && error == ENOENT);
}

template <class Object>
int VerbsDevice::destroy_in_time(int (*how)(Object*), Object* object) noexcept {
    if (!shared_) {
        return verbs_result(how(object));
    }
    if (held_up_) {
        return 0;  // it ends with the context
    }
    struct Call {
        std::mutex mutex;
        std::condition_variable over;
        std::optional<int> error;
    };
    try {
        const auto call = std::make_shared<Call>();
        dispose(reinterpret_cast<DisposalOwner>(context_.get()), [call, how, object] {
            const int error = verbs_result(how(object));
            const std::lock_guard lock(call->mutex);
            call->error = error;
            call->over.notify_one();
        });
        std::unique_lock lock(call->mutex);
        if (call->over.wait_for(lock, kDestroyWithin, [&] { return call->error.has_value(); })) {
            // EINVAL: in its place is now an object of another type.
            return destroyed(*call->error == EINVAL ? ENOENT : *call->error);
        }
    } catch (const std::bad_alloc&) {
        log_error("no memory to destroy an object of {}", name());
    }
    abused_ = held_up_ = true;
    log_error("{}: an object of a context that another process shares does not end: it stays until this process ends",
              describe());
    return 0;
}

template int VerbsDevice::destroy_in_time(int (*)(ibv_cq*), ibv_cq*) noexcept;
template int VerbsDevice::destroy_in_time(int (*)(ibv_qp*), ibv_qp*) noexcept;
template int VerbsDevice::destroy_in_time(int (*)(ibv_srq*), ibv_srq*) noexcept;

}  // namespace pollcore
