// The functions of the C library by which libibverbs, libmlx5 and librdmacm reach the kernel. This library is loaded
// first, so these functions hide the C library's own functions. They pass on all calls that do not concern the model.
// _FILE_OFFSET_BITS must not be defined: with it, the C library's headers would make `open` another name of `open64`,
// but this file defines both.
#undef _FILE_OFFSET_BITS

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <map>
#include <mutex>

#include "device_files.hpp"
#include "file.hpp"
#include "sysfs.hpp"

namespace mlx5_model {
namespace {

constexpr int kNetlinkRdma = 20;
constexpr int kDescriptors = 1 << 16;

struct Table {
    std::array<std::atomic<bool>, kDescriptors> ours{};
    std::mutex lock;
    struct Open {
        std::shared_ptr<File> file;
        pid_t by = ::getpid();
    };
    std::map<int, Open> files;
};

// Never destroyed: a process may close descriptors until its very end.
Table& table() {
    static auto* one = new Table;
    return *one;
}

bool ours(int descriptor) {
    return descriptor >= 0 && descriptor < kDescriptors &&
           table().ours[static_cast<std::size_t>(descriptor)].load(std::memory_order_acquire);
}

/// The function of this name that would be called without the model.
template <class Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

/// Returns a result as the wrappers of system calls do: for an error, sets errno and returns -1.
long answer(long result) {
    if (result >= 0) {
        return result;
    }
    errno = static_cast<int>(-result);
    return -1;
}

int open_one(const char* name, const char* path, int flags, mode_t mode) {
    if (const std::optional<int> descriptor = open_device_file(path)) {
        return static_cast<int>(answer(*descriptor));
    }
    return next<int(const char*, int, ...)>(name)(path, flags, mode);
}

mode_t mode_of(int flags, va_list arguments) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

template <class Stat>
int stat_one(const char* name, const char* path, Stat* out) {
    const std::optional<dev_t> device = device_file(path);
    if (!device) {
        static auto* const call = next<int(const char*, Stat*)>(name);
        return call(path, out);
    }
    *out = {};
    out->st_mode = S_IFCHR | 0666;
    out->st_rdev = *device;
    return 0;
}

}  // namespace

long File::ioctl(unsigned long, void*) {
    return -ENOTTY;
}
long File::read(void*, std::size_t) {
    return -EINVAL;
}
long File::write(const void*, std::size_t) {
    return -EINVAL;
}

void attach(int descriptor, std::shared_ptr<File> file) {
    const std::lock_guard guard(table().lock);
    table().files[descriptor] = {std::move(file)};
    table().ours.at(static_cast<std::size_t>(descriptor)).store(true, std::memory_order_release);
}

std::shared_ptr<File> attached(int descriptor) {
    if (!ours(descriptor)) {
        return nullptr;
    }
    const std::lock_guard guard(table().lock);
    const auto found = table().files.find(descriptor);
    return found == table().files.end() ? nullptr : found->second.file;
}

std::shared_ptr<File> detach(int descriptor) {
    if (!ours(descriptor)) {
        return nullptr;
    }
    const std::lock_guard guard(table().lock);
    table().ours[static_cast<std::size_t>(descriptor)].store(false, std::memory_order_release);
    auto node = table().files.extract(descriptor);
    // In a child of fork(2) the descriptor is only a copy. The parent's descriptor keeps the file.
    return node.empty() || node.mapped().by != ::getpid() ? nullptr : std::move(node.mapped().file);
}

namespace libc {
int open(const char* path, int flags, mode_t mode) {
    static auto* const call = next<int(const char*, int, ...)>("open");
    return call(path, flags, mode);
}
int close(int descriptor) {
    static auto* const call = next<int(int)>("close");
    return call(descriptor);
}
ssize_t read(int descriptor, void* to, std::size_t size) {
    static auto* const call = next<ssize_t(int, void*, std::size_t)>("read");
    return call(descriptor, to, size);
}
ssize_t write(int descriptor, const void* from, std::size_t size) {
    static auto* const call = next<ssize_t(int, const void*, std::size_t)>("write");
    return call(descriptor, from, size);
}
}  // namespace libc

}  // namespace mlx5_model

using mlx5_model::answer;
using mlx5_model::attached;

extern "C" {

__attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mlx5_model::mode_of(flags, arguments);
    va_end(arguments);
    return mlx5_model::open_one("open", path, flags, mode);
}

__attribute__((visibility("default"))) int open64(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mlx5_model::mode_of(flags, arguments);
    va_end(arguments);
    return mlx5_model::open_one("open64", path, flags, mode);
}

__attribute__((visibility("default"))) int stat(const char* path, struct stat* out) noexcept {
    return mlx5_model::stat_one("stat", path, out);
}

__attribute__((visibility("default"))) int stat64(const char* path, struct stat64* out) noexcept {
    return mlx5_model::stat_one("stat64", path, out);
}

__attribute__((visibility("default"))) int fstat(int descriptor, struct stat* out) noexcept {
    static auto* const call = mlx5_model::next<int(int, struct stat*)>("fstat");
    const int result = call(descriptor, out);
    if (result == 0) {
        if (const auto file = attached(descriptor)) {
            file->describe(*out);
        }
    }
    return result;
}

__attribute__((visibility("default"))) int fstat64(int descriptor, struct stat64* out) noexcept {
    // The two structures are the same on 64-bit Linux.
    return fstat(descriptor, reinterpret_cast<struct stat*>(out));
}

__attribute__((visibility("default"))) int ioctl(int descriptor, unsigned long request, ...) noexcept {
    va_list arguments;
    va_start(arguments, request);
    void* const argument = va_arg(arguments, void*);
    va_end(arguments);
    if (const auto file = attached(descriptor)) {
        return static_cast<int>(answer(file->ioctl(request, argument)));
    }
    static auto* const call = mlx5_model::next<int(int, unsigned long, ...)>("ioctl");
    return call(descriptor, request, argument);
}

__attribute__((visibility("default"))) ssize_t read(int descriptor, void* to, size_t size) {
    if (const auto file = attached(descriptor)) {
        return answer(file->read(to, size));
    }
    return mlx5_model::libc::read(descriptor, to, size);
}

__attribute__((visibility("default"))) ssize_t write(int descriptor, const void* from, size_t size) {
    if (const auto file = attached(descriptor)) {
        return answer(file->write(from, size));
    }
    return mlx5_model::libc::write(descriptor, from, size);
}

__attribute__((visibility("default"))) int close(int descriptor) {
    if (const auto file = mlx5_model::detach(descriptor)) {
        file->closed();
    }
    return mlx5_model::libc::close(descriptor);
}

// The libraries ask for the devices by netlink before they look in sysfs. A kernel with RDMA would answer that there
// are none, and the libraries would not look in sysfs.
__attribute__((visibility("default"))) int socket(int domain, int type, int protocol) noexcept {
    if (domain == AF_NETLINK && protocol == mlx5_model::kNetlinkRdma) {
        mlx5_model::make_sysfs();
        errno = EPROTONOSUPPORT;
        return -1;
    }
    static auto* const call = mlx5_model::next<int(int, int, int)>("socket");
    return call(domain, type, protocol);
}

}  // extern "C"
