#include "pollperf/report/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "pollcore/error.hpp"

namespace pollcore::perf {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(int cause, const fs::path& path, const char* option) {
    throw Error(cause != 0 ? cause : EIO, fmt::format("writing to {} ({})", path.string(), option));
}

// The descriptor of this process that the path names. To open such a path again would begin at the file's beginning,
// and overwrite what the process has written by the descriptor.
std::optional<int> own_descriptor(const fs::path& path) {
    const std::string text = path.string();
    if (text == "/dev/stdout") {
        return STDOUT_FILENO;
    }
    if (text == "/dev/stderr") {
        return STDERR_FILENO;
    }
    for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
        if (text.starts_with(folder)) {
            int descriptor = -1;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data() + folder.size(), end, descriptor);
            if (error == std::errc{} && stop == end) {
                return descriptor;
            }
        }
    }
    return std::nullopt;
}

bool may(const fs::path& path, int how) {
    return ::faccessat(AT_FDCWD, path.c_str(), how, AT_EACCESS) == 0;
}

fs::path folder_of(const fs::path& path) {
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The file that the path leads to, so that a symbolic link survives.
fs::path target_of(const fs::path& path) {
    std::error_code error;
    const fs::path target = fs::weakly_canonical(path, error);
    return error ? path : target;
}

/// How a file is written.
struct Way {
    fs::path target;
    std::optional<int> descriptor;  ///< write to this one
    bool replace = false;           ///< write another file and rename it
    mode_t mode = 0;                ///< of the existing regular file; 0: there is none
};

Way find_way(const fs::path& path, const char* option) {
    if (const auto descriptor = own_descriptor(path)) {
        const int flags = ::fcntl(*descriptor, F_GETFL);
        if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
            refuse(EBADF, path, option);
        }
        return {.target = path, .descriptor = descriptor};
    }
    if (path.empty() || !path.has_filename()) {
        refuse(path.empty() ? ENOENT : EISDIR, path, option);
    }
    Way way{.target = target_of(path), .descriptor = {}};
    struct stat found {};
    if (::stat(way.target.c_str(), &found) == 0) {
        if (S_ISDIR(found.st_mode)) {
            refuse(EISDIR, path, option);
        }
        if (!may(way.target, W_OK)) {
            refuse(errno, path, option);
        }
        // In a directory without permission, an existing file can only be overwritten.
        way.replace = S_ISREG(found.st_mode) && may(folder_of(way.target), W_OK | X_OK);
        way.mode = S_ISREG(found.st_mode) ? found.st_mode & 07777 : 0;
        return way;
    }
    if (errno != ENOENT) {
        refuse(errno, path, option);
    }
    if (!may(folder_of(way.target), W_OK | X_OK)) {
        refuse(errno, path, option);
    }
    way.replace = true;
    return way;
}

// Returns 0 or an errno value.
int write_all(int descriptor, std::string_view content) {
    while (!content.empty()) {
        const ssize_t written = ::write(descriptor, content.data(), content.size());
        if (written < 0 && errno != EINTR) {
            return errno;
        }
        content.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
    }
    return 0;
}

int write_and_close(int descriptor, std::string_view content) {
    const int failed = write_all(descriptor, content);
    // A network's file system may report only here that it is full.
    const int closed = ::close(descriptor) != 0 ? errno : 0;
    return failed != 0 ? failed : closed;
}

void replace_file(const Way& way, const fs::path& path, const std::string& content, const char* option) {
    const fs::path other = folder_of(way.target) / fmt::format(".pollperf-{}.tmp", ::getpid());
    (void)::unlink(other.c_str());  // of a process with this id that was killed
    const int descriptor = ::open(other.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        refuse(errno, path, option);
    }
    if (way.mode != 0) {
        (void)::fchmod(descriptor, way.mode);  // if it fails, the file has the usual permissions
    }
    int failed = write_and_close(descriptor, content);
    if (failed == 0 && ::rename(other.c_str(), way.target.c_str()) != 0) {
        failed = errno;
    }
    if (failed != 0) {
        (void)::unlink(other.c_str());
        refuse(failed, path, option);
    }
}

}  // namespace

void check_writable(const fs::path& path, const char* option) {
    (void)find_way(path, option);
}

void write_file(const fs::path& path, const std::string& content, const char* option) {
    const Way way = find_way(path, option);
    if (way.replace) {
        replace_file(way, path, content, option);
        return;
    }
    int descriptor = -1;
    if (way.descriptor) {
        (void)std::fflush(nullptr);  // what was printed before comes before
        descriptor = ::fcntl(*way.descriptor, F_DUPFD_CLOEXEC, 0);
    } else {
        descriptor = ::open(way.target.c_str(), O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC);
    }
    if (descriptor < 0) {
        refuse(errno, path, option);
    }
    if (const int failed = write_and_close(descriptor, content)) {
        refuse(failed, path, option);
    }
}

}  // namespace pollcore::perf
