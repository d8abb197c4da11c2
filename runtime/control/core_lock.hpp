// A lock file per worker core, so that two runtimes of one user do not poll on the same core (D31).
//
// The file is "pollcore-core-N.lock" in a directory that only its owner may write (lock_directory.hpp). Only the file's
// owner may open the file: any process that has the file open can lock it, and so keep the next runtime from starting.
// While the file is locked (flock(2)), it contains one line that names the holder: "PID PROGRAM WORKER". A core is
// taken if the file is locked, not if the file exists. The kernel drops the lock when the holder, and any forked child
// that still has the descriptor, has died. So nobody has to clean up stale files.
//
// The file stays when the lock is released. If the file were unlinked, two processes could hold one core: the first
// locks the old file, which it has open although the name is gone; the second creates a new file of that name and locks
// the new file.
//
// A forked child has copies of the descriptor and of the object. Destroying the copy of the object does not release the
// lock.
//
// Thread safety: one thread at a time: first the thread that makes the runtime, later the thread that stops it.
// Invariants: from construction to destruction the name in the directory leads to the locked file, unless somebody
// removes the file by hand.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "control/lock_directory.hpp"

namespace pollcore {

/// The name of a core's lock file, without its directory.
[[nodiscard]] std::string core_lock_name(std::uint32_t core);

class CoreLock {
public:
    /// Throws pollcore::Error: EBUSY, naming the owner, if another runtime has the core, even one of this process;
    /// EPERM if other users may open the file; EINVAL if it is no plain file; EAGAIN if it is removed again and again;
    /// otherwise the error of the file operation (EACCES, ...).
    CoreLock(const LockDirectory& directory, std::uint32_t core, std::string_view worker);
    CoreLock(CoreLock&&) noexcept = default;
    CoreLock& operator=(CoreLock&& other) noexcept;
    ~CoreLock();

    [[nodiscard]] const std::filesystem::path& file() const noexcept { return file_; }

private:
    void release() noexcept;

    std::filesystem::path file_;
    UniqueFd fd_;
    pid_t owner_ = 0;
};

}  // namespace pollcore
