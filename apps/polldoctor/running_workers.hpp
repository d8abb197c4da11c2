// Which cores the runtimes of this host use.
//
// Thread safety: any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pollcore::doctor {

/// The statistics segments of this host: those of root, of this user and of the daemon's user, and some of other users,
/// which may say anything.
struct SegmentsByTrust {
    std::vector<std::filesystem::path> trusted;
    std::vector<std::filesystem::path> strangers;
};
[[nodiscard]] SegmentsByTrust segments_by_trust();

/// The workers that run, as lines of kRunningFile: "CORE PID THREAD WHO". They are found in three places: statistics
/// segments (pollcore/statistics.hpp), locked core locks (control/core_lock.hpp), and claims, which other users'
/// runtimes make too (control/core_claim.hpp). Takes no lock itself, since that could keep a runtime from starting.
/// `lock_directory` is that of the configuration; empty: the usual ones.
[[nodiscard]] std::string running_workers(const std::filesystem::path& lock_directory);

}  // namespace pollcore::doctor
