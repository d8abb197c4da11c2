// The object behind a descriptor that the model has given out in the kernel's place.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>

namespace mlx5_model {

/// The calls on one descriptor, as the kernel's driver would answer them. Each returns 0 or more, or -errno. Any thread
/// may call: the files lock what they use.
class File {
public:
    virtual ~File() = default;
    /// Changes the result of fstat(2) on the underlying descriptor.
    virtual void describe(struct stat&) const {}
    virtual long ioctl(unsigned long request, void* argument);
    virtual long read(void* to, std::size_t size);
    virtual long write(const void* from, std::size_t size);
    /// Called when the program closes the descriptor: releases everything that was made through the descriptor, as the
    /// kernel does. No other call follows.
    virtual void closed() {}
};

/// From now on, calls on `descriptor` go to `file`, until the descriptor is closed.
void attach(int descriptor, std::shared_ptr<File> file);
/// Returns the file behind `descriptor`. Returns null, and takes no lock, if the descriptor is not the model's.
std::shared_ptr<File> attached(int descriptor);
/// Returns the file, as attached() does, and separates it from the descriptor. Also returns null in a child that
/// inherited the descriptor by fork(2).
std::shared_ptr<File> detach(int descriptor);

/// The C library's own functions, which bypass the model.
namespace libc {
int open(const char* path, int flags, mode_t mode = 0);
int close(int descriptor);
ssize_t read(int descriptor, void* to, std::size_t size);
ssize_t write(int descriptor, const void* from, std::size_t size);
}  // namespace libc

}  // namespace mlx5_model
