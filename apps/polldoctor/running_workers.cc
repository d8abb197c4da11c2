#include "running_workers.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <variant>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "config/users_and_groups.hpp"
#include "control/lock_directory.hpp"
#include "pollcore/statistics.hpp"

namespace pollcore::doctor {
namespace {

// Anybody can open very many sockets, or make very many files in /tmp, which must not delay polldoctor.
constexpr std::size_t kLinesMax = 1u << 16;
constexpr std::size_t kStrangersMax = 64;  // segments of other users that are read
constexpr std::uint64_t kCoresMax = 8192;  // CPUs that Linux can have

using Workers = std::map<std::uint32_t, std::string>;  // a line for each core

std::optional<std::uint64_t> value_of(const statistics::ReadTable& table, const statistics::ReadRow& row,
                                      const char* name) {
    const auto field = table.field(name);
    return field && row.words[*field].size() == 1 ? std::optional(row.words[*field][0]) : std::nullopt;
}

void add_segments(Workers& workers, const std::vector<std::filesystem::path>& files, bool trusted) {
    for (const std::filesystem::path& file : files) {
        try {
            const statistics::Snapshot snapshot = statistics::read_statistics(file);
            const statistics::ReadTable* const table = snapshot.table("worker");
            if (!snapshot.alive || table == nullptr) {
                continue;
            }
            const auto name = table->field("name");
            for (const statistics::ReadRow& row : table->rows) {
                const auto core = value_of(*table, row, "core");
                if (!core || *core >= kCoresMax) {
                    continue;
                }
                // Nothing but the core is taken from a stranger: whose limits are judged is not his to say.
                const std::uint32_t pid = trusted ? snapshot.header.pid : 0;
                const auto thread = static_cast<std::uint32_t>(value_of(*table, row, "thread").value_or(0));
                workers.emplace(static_cast<std::uint32_t>(*core),
                                fmt::format("{} {} process {}, worker {}", pid, trusted ? thread : 0,
                                            snapshot.header.pid, printable(name ? row.texts[*name] : "")));
            }
        } catch (const std::exception&) {
            // Not readable for this user, or no segment: the locks and claims remain.
        }
    }
}

// The names that sockets of CoreClaim have: "@pollcore-core-3-" and 16 hexadecimal digits at the end of the line.
void add_claims(Workers& workers) {
    std::ifstream sockets("/proc/net/unix");
    std::string line;
    for (std::size_t i = 0; i < kLinesMax && std::getline(sockets, line); ++i) {
        const std::size_t at = line.find(" @pollcore-core-");
        unsigned core = 0;
        if (at != line.npos && std::sscanf(line.c_str() + at, " @pollcore-core-%u-", &core) == 1) {
            workers.emplace(core, "0 0 a runtime, by its socket in /proc/net/unix");
        }
    }
}

/// The inodes that flock(2) has locked, as /proc/locks (proc_locks(5)) has them: "MAJOR:MINOR:INODE", with the process.
std::map<std::string, std::uint32_t> locked_files() {
    std::map<std::string, std::uint32_t> all;
    std::ifstream locks("/proc/locks");
    std::string line;
    for (std::size_t i = 0; i < kLinesMax && std::getline(locks, line); ++i) {
        std::istringstream words(line);
        std::string number, kind, mode, access, file;
        std::int64_t pid = 0;
        if (words >> number >> kind >> mode >> access >> pid >> file && kind == "FLOCK") {
            all[file] = pid > 0 ? static_cast<std::uint32_t>(pid) : 0;
        }
    }
    return all;
}

std::set<std::filesystem::path> lock_directories(const std::filesystem::path& configured) {
    std::set<std::filesystem::path> all;
    if (!configured.empty()) {
        all.insert(configured);
    }
    all.insert(kDaemonLockDirectory);
    std::error_code error;
    for (std::filesystem::directory_iterator each("/run/user", error), end; !error && each != end;
         each.increment(error)) {
        all.insert(each->path() / "pollcore");
    }
    std::size_t seen = 0;
    for (std::filesystem::directory_iterator each("/tmp", error), end; !error && each != end && ++seen <= kLinesMax;
         each.increment(error)) {
        if (each->path().filename().native().starts_with("pollcore-")) {
            all.insert(each->path());
        }
    }
    return all;
}

void add_locks(Workers& workers, const std::filesystem::path& configured) {
    const auto locked = locked_files();
    for (const std::filesystem::path& directory : lock_directories(configured)) {
        std::error_code error;
        std::size_t seen = 0;
        for (std::filesystem::directory_iterator each(directory, error), end;
             !error && each != end && ++seen <= kLinesMax; each.increment(error)) {
            unsigned core = 0;
            struct stat status {};
            if (std::sscanf(each->path().filename().c_str(), "pollcore-core-%u.lock", &core) != 1 ||
                ::lstat(each->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
                continue;
            }
            const auto owner =
                locked.find(fmt::format("{:02x}:{:02x}:{}", major(status.st_dev), minor(status.st_dev), status.st_ino));
            if (owner != locked.end()) {
                workers.emplace(core, fmt::format("{} 0 a runtime, by its lock {}", owner->second,
                                                  printable(each->path().native())));
            }
        }
    }
}

}  // namespace

SegmentsByTrust segments_by_trust() {
    const auto daemon = config::account_number(config::AccountKind::user, "pollcore");
    const auto* const daemon_uid = std::get_if<std::uint32_t>(&daemon);
    SegmentsByTrust found;
    for (std::filesystem::path& file : statistics::find_statistics()) {
        struct stat status {};
        if (::lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
            continue;
        }
        if (status.st_uid == 0 || status.st_uid == ::geteuid() ||
            (daemon_uid != nullptr && status.st_uid == *daemon_uid)) {
            found.trusted.push_back(std::move(file));
        } else if (found.strangers.size() < kStrangersMax) {
            found.strangers.push_back(std::move(file));
        }
    }
    return found;
}

std::string running_workers(const std::filesystem::path& lock_directory) {
    Workers workers;
    const SegmentsByTrust segments = segments_by_trust();
    add_segments(workers, segments.trusted, true);
    add_locks(workers, lock_directory);
    add_claims(workers);
    add_segments(workers, segments.strangers, false);
    std::string lines;
    for (const auto& [core, rest] : workers) {
        lines += fmt::format("{} {}\n", core, rest);
    }
    return lines;
}

}  // namespace pollcore::doctor
