// Where the statistics segments of this host are.
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
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

/// About when a dead process has died, in ns since 1970: when its segment was written last, or when its runtime began.
/// Returns 0 if the segment is damaged. The file's own time does not tell, because tmpfs does not note what is written
/// into a mapping.
std::uint64_t time_of_death(const std::filesystem::path& file) {
    const auto now = [](auto clock) {
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(clock.time_since_epoch()).count());
    };
    try {
        const Header header = read_statistics(file).header;
        const std::uint64_t since = now(std::chrono::steady_clock::now()) - header.updated;
        return std::max(header.began, now(std::chrono::system_clock::now()) - since);
    } catch (const Error&) {
        return 0;
    }
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
        std::vector<std::pair<std::uint64_t, std::filesystem::path>> dead;
        for (const std::filesystem::path& file : find_statistics()) {
            if (is_dead(file) && is_own_file(file)) {
                dead.emplace_back(time_of_death(file), file);
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
