#include "control/lock_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore {
namespace {

// Everybody may look up the lock files (daemon_lock.hpp). Only the owner may make or remove them.
constexpr mode_t kDirectoryMode = 0755;

struct Unusable {
    int error = 0;
    std::string why;
};

Unusable by_errno(const char* call) {
    const int error = errno;
    return {error, fmt::format("{}: {}", call, std::generic_category().message(error))};
}

// Returns why other users could write to the directory. Returns nothing if the directory belongs to this user, or to
// root with `roots_will_do`, and nobody else may write to it.
std::optional<Unusable> writable_by_others(int fd, bool roots_will_do) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        return by_errno("fstat");
    }
    if (status.st_uid != ::geteuid() && !(roots_will_do && status.st_uid == 0)) {
        return Unusable{EPERM,
                        fmt::format("it belongs to user {}, and this process is user {}", status.st_uid, ::geteuid())};
    }
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return Unusable{EPERM, fmt::format("other users may write in it (mode {:04o}), who could take the locks away",
                                           status.st_mode & 07777U)};
    }
    return std::nullopt;
}

// Opens the candidate as `fd`, and makes the directory if it is missing. Returns why the candidate cannot be used, or
// nothing if it can.
std::optional<Unusable> take_candidate(const std::filesystem::path& path, UniqueFd& fd) {
    const bool made = ::mkdir(path.c_str(), kDirectoryMode) == 0;
    if (!made && errno != EEXIST) {
        return by_errno("mkdir");
    }
    // O_NOFOLLOW, because in /tmp the name may be another user's symbolic link.
    fd.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid()) {
        return by_errno("open");
    }
    if (auto unusable = writable_by_others(fd.get(), false)) {
        return unusable;
    }
    // Set the mode again, because the umask may have removed bits.
    if (made && ::fchmod(fd.get(), kDirectoryMode) != 0) {
        return by_errno("fchmod");
    }
    return std::nullopt;
}

}  // namespace

std::vector<std::filesystem::path> usual_lock_directories(uid_t user) {
    return {kDaemonLockDirectory, fmt::format("/run/user/{}/pollcore", user), fmt::format("/tmp/pollcore-{}", user)};
}

LockDirectory::LockDirectory(const std::filesystem::path& configured)
    : path_(configured), fd_(::open(configured.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    const auto fail = [&](int error, const std::string& what) {
        return Error(error, fmt::format("runtime.lock_directory = \"{}\": {}", configured.native(), what));
    };
    if (!fd_.valid()) {
        const int error = errno;
        throw fail(error, error == ENOENT || error == ENOTDIR
                              ? "this is no directory that exists; create it, or name another one"
                              : "the directory cannot be opened; name another one");
    }
    if (const auto unusable = writable_by_others(fd_.get(), true)) {
        throw fail(
            unusable->error,
            unusable->why + "; name a directory of this user or of root with mode 0755 or 0700, or leave the key out");
    }
}

LockDirectory::LockDirectory(const std::vector<std::filesystem::path>& candidates) {
    std::string reasons;
    int error = ENOENT;
    for (const std::filesystem::path& candidate : candidates) {
        const auto unusable = take_candidate(candidate, fd_);
        if (!unusable) {
            path_ = candidate;
            return;
        }
        error = unusable->error;
        reasons += fmt::format("{}{} ({})", reasons.empty() ? "" : ", ", candidate.native(), unusable->why);
    }
    throw Error(error,
                fmt::format("no directory for the locks of this user's cores: {}; name one in runtime.lock_directory",
                            reasons));
}

}  // namespace pollcore
