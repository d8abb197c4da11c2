// Where the statistics segments of this host are.
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"
#include "pollcore/statistics.hpp"
#include "statistics/process_start.hpp"
#include "statistics/segment_writer.hpp"

namespace pollcore::statistics {
namespace {

constexpr std::string_view kPrefix = "pollcore-";
constexpr std::string_view kSuffix = ".statistics";

/// How the names of this process's segments begin.
std::string own_prefix() {
    return fmt::format("{}{}-{}-", kPrefix, ::getpid(), process_start(::getpid()).value_or(0));
}

bool is_own_file(const std::filesystem::path& file) noexcept {
    struct stat status {};
    return ::lstat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid();
}

/// Whether the process that made this segment has ended. False if the name is not that of a segment.
bool is_dead(const std::filesystem::path& file) {
    int pid = 0;
    unsigned long long started = 0;
    return std::sscanf(file.filename().c_str(), "pollcore-%d-%llu-", &pid, &started) == 2 &&
           process_start(pid) != started;
}

}  // namespace

std::filesystem::path segment_directory() {
    return "/dev/shm";
}

std::filesystem::path new_segment_file() {
    static std::atomic<unsigned> made{0};
    std::uint32_t unknown = 0;  // keeps another user from making the file first
    if (::getrandom(&unknown, sizeof(unknown), 0) != static_cast<ssize_t>(sizeof(unknown))) {
        throw Error(errno, "no random number for the name of the statistics segment");
    }
    return segment_directory() /
           fmt::format("{}{}-{:08x}{}", own_prefix(), made.fetch_add(1, std::memory_order_relaxed), unknown, kSuffix);
}

std::vector<std::filesystem::path> find_statistics() {
    std::vector<std::filesystem::path> found;
    std::error_code error;
    for (std::filesystem::directory_iterator each(segment_directory(), error), end; !error && each != end;
         each.increment(error)) {
        const std::string name = each->path().filename();
        if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) {
            found.push_back(each->path());
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

std::vector<std::filesystem::path> own_segment_files() {
    std::vector<std::filesystem::path> files = find_statistics();
    std::erase_if(files, [prefix = own_prefix()](const std::filesystem::path& file) {
        return !file.filename().native().starts_with(prefix) || !is_own_file(file);
    });
    return files;
}

void remove_dead_segments() noexcept {
    try {
        std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> dead;
        for (std::filesystem::path& file : find_statistics()) {
            if (is_dead(file) && is_own_file(file)) {
                std::error_code error;  // another runtime may remove the file at the same time
                dead.emplace_back(std::filesystem::last_write_time(file, error), std::move(file));
            }
        }
        std::sort(dead.begin(), dead.end());
        for (std::size_t i = 0; i + kDeadKept < dead.size(); ++i) {
            (void)::unlink(dead[i].second.c_str());
        }
    } catch (const std::exception&) {
        // They stay until another runtime starts.
    }
}

}  // namespace pollcore::statistics
