// What stands behind a descriptor that the model has given out in the kernel's place.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>

namespace mlx5_model {

/// The calls on one descriptor, as the kernel's driver would answer them. Each returns 0 or more, or -errno.
/// Called by any thread; a file has its own lock.
class File {
public:
    virtual ~File() = default;
    /// What fstat(2) says beside what the descriptor underneath says.
    virtual void describe(struct stat&) const {}
    virtual long ioctl(unsigned long request, void* argument);
    virtual long read(void* to, std::size_t size);
    virtual long write(const void* from, std::size_t size);
    /// The descriptor was closed: the kernel takes back all that hangs on it. No other call comes afterwards.
    virtual void closed() {}
};

/// From now on calls on `descriptor` go to `file`, until it is closed.
void attach(int descriptor, std::shared_ptr<File> file);
/// Null for descriptors that are not the model's: no lock is taken to find that out.
std::shared_ptr<File> attached(int descriptor);
/// As attached(); the descriptor is nobody's afterwards. Null, too, in a child that has it by fork(2).
std::shared_ptr<File> detach(int descriptor);

/// The C library's own functions, past the model.
namespace libc {
int open(const char* path, int flags, mode_t mode = 0);
int close(int descriptor);
ssize_t read(int descriptor, void* to, std::size_t size);
ssize_t write(int descriptor, const void* from, std::size_t size);
}  // namespace libc

}  // namespace mlx5_model
