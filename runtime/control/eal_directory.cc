#include "control/eal_directory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace pollcore {
namespace {

constexpr std::string_view kVariable = "RUNTIME_DIRECTORY=";

// The environment while an EalDirectory exists. It is never freed, because another thread may still be reading it.
// setenv(3) cannot be used, because it may free memory that another thread is reading.
struct Environment {
    std::string entry;
    std::vector<char*> entries;
};

Environment& environment() {
    static auto* const only = new Environment;
    return *only;
}

/// As eal_create_runtime_dir() of DPDK 22.11 chooses it.
std::string base_directory() {
    const char* const wanted = std::getenv("RUNTIME_DIRECTORY");
    const char* const of_user = std::getenv("XDG_RUNTIME_DIR");
    return wanted != nullptr ? wanted : ::getuid() == 0 ? "/var/run" : of_user != nullptr ? of_user : "/tmp";
}

}  // namespace

std::string fault_of_telemetry_directory() {
    std::string directory = base_directory();
    // Only the inner directory has to be closed to readers.
    for (const auto& [part, closed_to_others] :
         {std::pair("/dpdk", mode_t{0022}), std::pair("/pollcore", mode_t{0077})}) {
        directory += part;
        struct stat status {};
        if ((::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) || ::lstat(directory.c_str(), &status) != 0) {
            return fmt::format("{}: {}", directory, std::strerror(errno));
        }
        if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & closed_to_others) != 0) {
            return fmt::format("{} is no directory that only this user may use", directory);
        }
    }
    return {};
}

EalDirectory::EalDirectory() {
    std::string made = "/tmp/pollcore-eal-XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) {
        return;
    }
    path_ = made;
    Environment& ours = environment();
    ours.entry = std::string(kVariable) + path_;
    ours.entries.assign(1, ours.entry.data());
    before_ = environ;
    for (char** entry = before_; entry != nullptr && *entry != nullptr; ++entry) {
        if (!std::string_view(*entry).starts_with(kVariable)) {
            ours.entries.push_back(*entry);
        }
    }
    ours.entries.push_back(nullptr);
    environ = ours.entries.data();
}

EalDirectory::~EalDirectory() {
    if (path_.empty()) {
        return;
    }
    if (environ ==
        environment().entries.data()) {  // else somebody has changed the environment, and before_ may be invalid
        environ = before_;
    }
    std::error_code ignored;  // after a failure, the directory stays in /tmp
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace pollcore
