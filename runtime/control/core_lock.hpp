// A lock file per worker core, so that two runtimes of a machine never poll on one core.
//
// The file is "pollcore-core-N.lock" in the configuration's lock_directory. While it is locked (flock(2)) it
// says in one line who holds it: "PID PROGRAM WORKER". The lock, not the file, is what counts: the kernel
// drops it when its owner dies, however that happens, so nothing stale ever has to be cleaned up.
//
// The file stays in place when the lock is given up. Were it unlinked, a second process that has it open
// already and waits for its lock would get the lock of a file that has no name any more, while a third one
// creates the file anew and locks that: two owners of one core.
//
// A child that the owner forks has copies of the descriptor, and of the object: that copy gives nothing up.
//
// Thread safety: none; the control thread's.
// Invariants: between construction and destruction the name in the directory is the file that is locked,
// unless somebody removes it by hand.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/unique_fd.hpp"

namespace pollcore {

class CoreLock {
public:
    /// Throws pollcore::Error: EBUSY, naming the owner, when the core is taken (also within this process);
    /// else what the directory or file said (ENOENT, EACCES, ...).
    CoreLock(const std::filesystem::path& directory, std::uint32_t core, std::string_view worker);
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
