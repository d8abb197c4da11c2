// Checks the paths of a configuration against the file system of this machine.
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "config/rules.hpp"
#include "config/validation.hpp"

namespace pollcore::config {
namespace {

// Only these two errors count: any other error may only show that the user of this process has too few rights, and the
// daemon may run as another user.
bool is_missing(int error) noexcept {
    return error == ENOENT || error == ENOTDIR;
}

Refusal check_directory(const std::filesystem::path& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        return is_missing(errno) ? Refusal("there is no such directory") : std::nullopt;
    }
    return S_ISDIR(status.st_mode) ? std::nullopt : Refusal("it is no directory");
}

// A socket at `path` is no error. A killed daemon may have left it there, or it may belong to a running daemon that
// reads its configuration again.
Refusal check_socket_path(const std::filesystem::path& path) {
    const std::filesystem::path directory = path.parent_path();
    if (const Refusal why = check_directory(directory)) {
        return "the socket cannot be made in " + toml_quoted_short(directory.native()) + ": " + *why;
    }
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) {
        return "there is something else than a socket";
    }
    return std::nullopt;
}

}  // namespace

void check_paths(const Config& config, const Origin& origin) {
    if (const auto& path = config.lock_directory; !path.empty()) {
        if (const Refusal why = check_directory(path)) {
            origin.refuse("runtime.lock_directory", toml_quoted(path.native()), *why,
                          "the absolute path of a directory that exists");
        }
    }
    for (const auto& [key, path] :
         {std::pair("attach.path", &config.attach.path), {"control.path", &config.control.path}}) {
        if (const Refusal why = path->empty() ? std::nullopt : check_socket_path(*path)) {
            origin.refuse(key, toml_quoted(path->native()), *why,
                          "a path in a directory that exists, at which there is nothing or a socket");
        }
    }
}

}  // namespace pollcore::config
