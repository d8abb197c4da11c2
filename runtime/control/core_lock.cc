#include "control/core_lock.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

// Nobody but the owner may open the file, not even for reading: flock(2) also works on a read-only descriptor.
constexpr mode_t kLockMode = 0600;

// An attempt is repeated if somebody removes the file at the same moment, or if a signal interrupts flock(2).
constexpr int kAttemptsMax = 16;

// All messages begin with "locking core 1 for worker "w": ".
struct Attempt {
    const std::filesystem::path& file;
    std::uint32_t core;
    std::string_view worker;

    [[noreturn]] void fail(int error, const std::string& why) const {
        throw Error(error, fmt::format("locking core {} for worker \"{}\": {}", core, worker, why));
    }
};

UniqueFd open_lock_file(const LockDirectory& directory, const Attempt& attempt) {
    UniqueFd fd(::openat(directory.fd(), attempt.file.filename().c_str(),
                         O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, kLockMode));
    if (fd.valid()) {
        return fd;
    }
    const int error = errno;
    switch (error) {
        case EACCES:
        case EPERM:
        case EROFS:
            attempt.fail(error, fmt::format("user {} may not write {}; allow it, or name another directory in "
                                            "runtime.lock_directory",
                                            ::geteuid(), attempt.file.native()));
        case ELOOP:
            attempt.fail(error, fmt::format("{} is a symbolic link, which a lock file never is; remove it",
                                            attempt.file.native()));
        default: attempt.fail(error, fmt::format("opening {}", attempt.file.native()));
    }
}

// Throws unless this user alone can open the file.
void require_own_file(const Attempt& attempt, const struct stat& info) {
    // A file with a second link could be any file of this user, and an attacker could make pollcore empty it.
    if (!S_ISREG(info.st_mode) || info.st_nlink > 1) {
        attempt.fail(EINVAL,
                     fmt::format("{} is not the plain file that a lock file is; remove it", attempt.file.native()));
    }
    if (info.st_uid != ::geteuid() || (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        attempt.fail(
            EPERM,
            fmt::format("{} is a file of user {} with mode {:04o}, which others than user {} may lock; remove it",
                        attempt.file.native(), info.st_uid, info.st_mode & 07777U, ::geteuid()));
    }
}

struct Owner {
    pid_t pid = 0;
    std::string program;
    std::string worker;
};

// Returns the owner that the file names. The text in the file may be anything, so only well-formed text is accepted.
std::optional<Owner> read_owner(int fd) {
    std::array<char, 256> buffer;
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) {
        return std::nullopt;
    }
    std::string_view text(buffer.data(), static_cast<std::size_t>(got));
    text = text.substr(0, text.find('\n'));
    Owner owner;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), owner.pid);
    const std::size_t program = static_cast<std::size_t>(end - text.data()) + 1;
    const std::size_t worker = text.rfind(' ');
    const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
    if (error != std::errc{} || owner.pid <= 0 || !printable || worker == text.npos || worker < program) {
        return std::nullopt;
    }
    owner.program = text.substr(program, worker - program);
    owner.worker = text.substr(worker + 1);
    return owner;
}

[[noreturn]] void fail_busy(const Attempt& attempt, int fd) {
    const std::string& file = attempt.file.native();
    const std::optional<Owner> owner = read_owner(fd);
    if (!owner) {
        attempt.fail(EBUSY, fmt::format("{} is locked by a process that has not said its name ('fuser {}' finds it); "
                                        "stop it, choose another core, or share this one (runtime.share_cores)",
                                        file, file));
    }
    const std::string whose = fmt::format("{} is locked by process {} ({}, worker {})", file, owner->pid,
                                          printable(owner->program), printable(owner->worker));
    if (::kill(owner->pid, 0) != 0 && errno == ESRCH) {
        // A lock exists as long as any copy of its descriptor is open. A child of the owner has a copy if it has not
        // called exec().
        attempt.fail(EBUSY, fmt::format("{}, which cannot be seen from here: either it is in another container, or it "
                                        "is gone and a child of it lives on with the lock ('fuser {}' finds it); stop "
                                        "that, choose another core, or share this one (runtime.share_cores)",
                                        whose, file));
    }
    attempt.fail(EBUSY,
                 fmt::format("{}; stop it, choose another core, or share this one (runtime.share_cores)", whose));
}

// Whether the name still leads to the locked file. If not, the file was removed between open and lock, and the next
// process would lock another file.
bool still_named(const std::filesystem::path& file, const struct stat& locked) {
    struct stat named {};
    return ::lstat(file.c_str(), &named) == 0 && named.st_dev == locked.st_dev && named.st_ino == locked.st_ino;
}

// The last part of the path by which this program was called. It can be any bytes.
std::string program_name() {
    std::string name = program_invocation_short_name;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c <= 0x20 || c >= 0x7f; }, '_');
    return name.substr(0, 64);
}

void write_owner(const Attempt& attempt, int fd) {
    const std::string line = fmt::format("{} {} {}\n", ::getpid(), program_name(), attempt.worker);
    // The file is emptied only while this process has the lock. Without the lock, the text could be another owner's.
    if (::ftruncate(fd, 0) != 0) {
        attempt.fail(errno, fmt::format("emptying {}", attempt.file.native()));
    }
    const ssize_t written = ::pwrite(fd, line.data(), line.size(), 0);
    if (written != static_cast<ssize_t>(line.size())) {
        attempt.fail(written < 0 ? errno : ENOSPC,
                     fmt::format("writing the owner's name into {}", attempt.file.native()));
    }
}

}  // namespace

std::string core_lock_name(std::uint32_t core) {
    return fmt::format("pollcore-core-{}.lock", core);
}

CoreLock::CoreLock(const LockDirectory& directory, std::uint32_t core, std::string_view worker)
    : file_(directory.path() / core_lock_name(core)) {
    const Attempt attempt{file_, core, worker};
    for (int i = 0; i < kAttemptsMax; ++i) {
        UniqueFd fd = open_lock_file(directory, attempt);
        struct stat info {};
        if (::fstat(fd.get(), &info) != 0) {
            attempt.fail(errno, fmt::format("fstat of {}", file_.native()));
        }
        require_own_file(attempt, info);
        if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) {
                fail_busy(attempt, fd.get());
            }
            if (errno != EINTR) {
                attempt.fail(errno, fmt::format("flock of {}", file_.native()));
            }
        } else if (still_named(file_, info)) {
            write_owner(attempt, fd.get());
            fd_ = std::move(fd);
            owner_ = ::getpid();
            return;
        }
    }
    attempt.fail(EAGAIN, fmt::format("{} comes and goes; see who removes it", file_.native()));
}

CoreLock& CoreLock::operator=(CoreLock&& other) noexcept {
    if (this != &other) {
        release();
        file_ = std::move(other.file_);
        fd_ = std::move(other.fd_);
        owner_ = other.owner_;
    }
    return *this;
}

CoreLock::~CoreLock() {
    release();
}

void CoreLock::release() noexcept {
    // In a forked child this object is a copy, and the parent still has the core.
    if (!fd_.valid() || owner_ != ::getpid()) {
        fd_.reset();
        return;
    }
    // The file is emptied before it is unlocked. Afterwards the text could be the next owner's.
    if (::ftruncate(fd_.get(), 0) != 0) {
        log_warning("the name of this process stays in {}: error {} when emptying it", file_.native(), errno);
    }
    // The file is unlocked explicitly, because closing it unlocks nothing if a forked child still has the descriptor.
    if (::flock(fd_.get(), LOCK_UN) != 0) {
        log_warning("unlocking {}: error {}", file_.native(), errno);
    }
    fd_.reset();
}

}  // namespace pollcore
