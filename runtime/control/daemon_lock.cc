#include "control/daemon_lock.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "control/core_lock.hpp"

namespace pollcore {
namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;

// A line is "1: FLOCK  ADVISORY  WRITE 11300 fe:00:1114861 0 EOF" (proc_locks(5)). For a process that waits for a lock,
// there is a line with "->" before FLOCK, which is skipped here.
std::optional<pid_t> holder_of(const struct stat& file) {
    const std::string wanted = fmt::format("{:02x}:{:02x}:{}", major(file.st_dev), minor(file.st_dev), file.st_ino);
    std::ifstream locks("/proc/locks");
    for (std::string line; std::getline(locks, line);) {
        std::istringstream words(line);
        std::string number;
        std::string kind;
        std::string is_advisory;
        std::string access;
        pid_t process = 0;
        std::string what;
        if (words >> number >> kind >> is_advisory >> access >> process >> what && kind == "FLOCK" &&
            access == "WRITE" && what == wanted) {
            return process;
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<DaemonLock> find_daemon_lock(const std::filesystem::path& directory, std::uint32_t core) {
    const std::filesystem::path file = directory / core_lock_name(core);
    struct stat of_directory {};
    struct stat of_file {};
    if (::lstat(directory.c_str(), &of_directory) != 0 || ::lstat(file.c_str(), &of_file) != 0) {
        return std::nullopt;
    }
    // If other users can open or replace the file, the lock does not prove who holds it.
    const bool only_its_owner = S_ISDIR(of_directory.st_mode) && (of_directory.st_mode & kOthersMayWrite) == 0 &&
                                S_ISREG(of_file.st_mode) && of_file.st_uid == of_directory.st_uid &&
                                (of_file.st_mode & (S_IRWXG | S_IRWXO)) == 0;
    if (!only_its_owner) {
        return std::nullopt;
    }
    const std::optional<pid_t> process = holder_of(of_file);
    return process ? std::optional(DaemonLock{.file = file, .process = *process, .user = of_file.st_uid})
                   : std::nullopt;
}

}  // namespace pollcore
