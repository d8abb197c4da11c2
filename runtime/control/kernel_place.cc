#include "control/kernel_place.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace pollcore {
namespace {

struct SystemCall {
    long number;
    std::string_view name;
};

// System calls in which a thread of this runtime, or a provider's code in such a thread, may hang. Not every
// architecture has all of them.
constexpr SystemCall kSystemCalls[] = {
    {SYS_read, "read"},
    {SYS_write, "write"},
    {SYS_readv, "readv"},
    {SYS_writev, "writev"},
    {SYS_openat, "openat"},
    {SYS_close, "close"},
    {SYS_ioctl, "ioctl"},
    {SYS_mmap, "mmap"},
    {SYS_munmap, "munmap"},
    {SYS_mremap, "mremap"},
    {SYS_mprotect, "mprotect"},
    {SYS_madvise, "madvise"},
    {SYS_futex, "futex"},
    {SYS_ppoll, "ppoll"},
    {SYS_epoll_pwait, "epoll_pwait"},
    {SYS_nanosleep, "nanosleep"},
    {SYS_clock_nanosleep, "clock_nanosleep"},
    {SYS_sched_yield, "sched_yield"},
    {SYS_accept4, "accept4"},
    {SYS_connect, "connect"},
    {SYS_sendmsg, "sendmsg"},
    {SYS_recvmsg, "recvmsg"},
    {SYS_sendto, "sendto"},
    {SYS_recvfrom, "recvfrom"},
    {SYS_fsync, "fsync"},
    {SYS_fcntl, "fcntl"},
    {SYS_fallocate, "fallocate"},
    {SYS_ftruncate, "ftruncate"},
#ifdef SYS_poll
    {SYS_poll, "poll"},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait"},
#endif
};

std::string_view name_of(long number) noexcept {
    for (const SystemCall& call : kSystemCalls) {
        if (call.number == number) {
            return call.name;
        }
    }
    return "of this number";
}

// Returns nothing if the file cannot be read; errno then says why.
std::optional<std::string> read_task_file(int thread_id, const char* file) {
    const UniqueFd fd(::open(fmt::format("/proc/self/task/{}/{}", thread_id, file).c_str(), O_RDONLY | O_CLOEXEC));
    std::string text(256, '\0');
    const ssize_t length = fd.valid() ? ::read(fd.get(), text.data(), text.size()) : -1;
    if (length < 0) {
        return std::nullopt;
    }
    text.resize(static_cast<std::size_t>(length));
    return text;
}

}  // namespace

std::string kernel_place(int thread_id) {
    const std::optional<std::string> call = read_task_file(thread_id, "syscall");
    if (!call) {
        return fmt::format("in what cannot be told, since /proc/self/task/{}/syscall cannot be read: {}", thread_id,
                           std::strerror(errno));
    }
    long number = -1;
    const auto parsed = std::from_chars(call->data(), call->data() + call->size(), number);
    if (parsed.ec != std::errc()) {
        return "while it runs on a core";  // the file contains only "running"
    }
    const std::string where =
        number < 0 ? "outside of system calls" : fmt::format("in the system call {} ({})", name_of(number), number);
    const std::optional<std::string> channel = read_task_file(thread_id, "wchan");
    // If the file is empty or contains "0", the thread does not wait, or this kernel does not say where.
    return channel && !channel->empty() && *channel != "0" ? fmt::format("{}, in the kernel's {}", where, *channel)
                                                           : where;
}

}  // namespace pollcore
