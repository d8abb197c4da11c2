// A lock file per worker core, so that two runtimes of a user never poll on one core (D31).
//
// The file is "pollcore-core-N.lock" in a directory that only its owner may write (lock_directory.hpp). Only the owner
// may open the file: a process that has it open can lock it, and so keep the next runtime from starting. While it is
// locked (flock(2)) it says in one line who holds it: "PID PROGRAM WORKER". The lock counts, not the file: the kernel
// drops the lock when its owner dies, however that happens, so nothing stale ever has to be cleaned up.
//
// The file stays in place when the lock is given up. If it were unlinked, a core could get two owners: a process that
// has the old file open and waits would get the lock of a file without a name, and another one would create the file
// anew and lock that.
//
// A child that the owner forks has copies of the descriptor and of the object. The copied object gives nothing up.
//
// Thread safety: none; the thread that makes the runtime, and then the one that stops it.
// Invariants: between construction and destruction the name in the directory is the file that is locked,
// unless somebody removes it by hand.
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
    /// Throws pollcore::Error: EBUSY, naming the owner, when the core is taken (also within this process); EPERM when
    /// other users may open the file; else the error of the file (EACCES, ...).
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
