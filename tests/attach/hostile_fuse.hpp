// A file system in user space (fuse(4)) that answers every request that needs an answer, except FLUSH. The kernel sends
// FLUSH whenever a descriptor of a file is closed, and close() waits for the answer. Only for hostile.cc.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace hostile {

class SilentFileSystem {
public:
    explicit SilentFileSystem(int device) : device_(device) {}

    // Serves until the process `user` ends. Prints "flushed by TID" for each FLUSH.
    void serve(pid_t user) {
        while (has_memory(user)) {
            pollfd asked{.fd = device_, .events = POLLIN, .revents = 0};
            if (::poll(&asked, 1, 10) <= 0) {
                continue;
            }
            const ssize_t got = ::read(device_, request_.data(), request_.size());
            if (got >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
                answer();
            } else if (errno != EINTR && errno != EAGAIN && errno != ENOENT) {
                return;
            }
        }
    }

private:
    static constexpr std::uint64_t kFile = 2;

    // A process that ends releases its memory first, and its cmdline in /proc is then empty. It releases its
    // descriptors later, and may then wait for this file system.
    static bool has_memory(pid_t process) {
        const int fd = ::open(("/proc/" + std::to_string(process) + "/cmdline").c_str(), O_RDONLY | O_CLOEXEC);
        char first = 0;
        const bool has = fd >= 0 && ::read(fd, &first, 1) == 1;
        if (fd >= 0) {
            ::close(fd);
        }
        return has;
    }

    void answer() {
        fuse_in_header asked{};
        std::memcpy(&asked, request_.data(), sizeof(asked));
        switch (asked.opcode) {
            case FUSE_INIT: {
                fuse_init_out limits{};
                limits.major = FUSE_KERNEL_VERSION;
                limits.minor = FUSE_KERNEL_MINOR_VERSION;
                limits.max_write = 4096;
                return reply(asked, &limits, sizeof(limits));
            }
            case FUSE_LOOKUP: {
                fuse_entry_out file{};
                file.nodeid = kFile;
                file.attr = attributes(kFile);
                return reply(asked, &file, sizeof(file));
            }
            case FUSE_GETATTR: {
                fuse_attr_out its{};
                its.attr = attributes(asked.nodeid);
                return reply(asked, &its, sizeof(its));
            }
            case FUSE_OPEN: {
                const fuse_open_out open{};
                return reply(asked, &open, sizeof(open));
            }
            case FUSE_FLUSH:
                std::printf("flushed by %u\n", asked.pid);
                std::fflush(stdout);
                return;
            case FUSE_FORGET:
            case FUSE_BATCH_FORGET:
            case FUSE_INTERRUPT: return;  // nobody waits for an answer
            default: return reply(asked, nullptr, 0, -ENOSYS);
        }
    }

    static fuse_attr attributes(std::uint64_t node) {
        fuse_attr its{};
        its.ino = node;
        its.mode = node == kFile ? S_IFREG | 0666 : S_IFDIR | 0777;
        its.nlink = 1;
        its.size = 4096;
        return its;
    }

    void reply(const fuse_in_header& asked, const void* body, std::size_t bytes, int error = 0) {
        std::array<std::byte, sizeof(fuse_out_header) + 256> packet{};
        const fuse_out_header header{
            .len = static_cast<std::uint32_t>(sizeof(header) + bytes), .error = error, .unique = asked.unique};
        std::memcpy(packet.data(), &header, sizeof(header));
        if (bytes != 0) {
            std::memcpy(packet.data() + sizeof(header), body, bytes);
        }
        (void)!::write(device_, packet.data(), header.len);
    }

    int device_;
    std::array<std::byte, 1U << 17> request_{};
};

// Mounts a SilentFileSystem at `directory`, for this process and its children only. Returns a descriptor of a file in
// the file system. A child process serves the file system until this process ends.
inline int open_file_that_is_never_flushed(const std::string& directory) {
    const auto require = [](bool holds, const char* what) {
        if (!holds) {
            std::printf("failed: %s: %s\n", what, std::strerror(errno));
            std::fflush(stdout);
            std::_Exit(1);
        }
    };
    require(::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0,
            "a mount namespace");
    require(::mkdir(directory.c_str(), 0755) == 0, "mkdir");
    const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    require(device >= 0, "/dev/fuse (is the kernel's module fuse there?)");
    const std::string options = "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0";
    require(::mount("silent", directory.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0,
            "mount of type fuse");
    const pid_t user = ::getpid();
    const pid_t child = ::fork();
    require(child >= 0, "fork");
    if (child == 0) {
        SilentFileSystem(device).serve(user);
        std::_Exit(0);
    }
    ::close(device);
    const int file = ::open((directory + "/file").c_str(), O_RDWR | O_CLOEXEC);
    require(file >= 0, "open");
    return file;
}

}  // namespace hostile
