// Turns snapshots of runtimes into Prometheus metrics.
//
// Each field of a table becomes a metric by what the segment says of it, so a field of a later version appears by
// itself: pollcore_TABLE_FIELD, with "_seconds" or "_bytes" for its unit, and "_total" for a counter. Numbers and texts
// that only describe a thing are labels of pollcore_TABLE_info.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "exposition.hpp"
#include "group_sums.hpp"
#include "pollcore/statistics.hpp"

namespace pollcore::stat {

struct MetricsOptions {
    bool per_session = false;     ///< false: summed by worker and user
    bool per_queue_pair = false;  ///< false: summed by worker, device and user
};

class Metrics {
public:
    explicit Metrics(MetricsOptions options) : options_(options) {}

    /// Adds the metrics of a runtime, at most `samples_max`. `segment` names its segment, and no other one has this
    /// name. `owner` is the user who owns the file. `now` is of CLOCK_MONOTONIC, in ns.
    void add(Exposition& out, const std::string& segment, std::uint32_t owner, const statistics::Snapshot& snapshot,
             std::uint64_t now, std::size_t samples_max);
    /// Call this after all runtimes were added. Forgets runtimes that were not.
    void forget_others();

private:
    class Names;
    /// A worker's busy time is the time since the first look, less the idle time since then.
    struct Busy {
        std::uint64_t updated = 0;  // at the first look
        std::uint64_t idle = 0;     // cycles, at the first look
        double seconds = 0;         // so far; never less
    };
    struct Runtime {
        std::uint64_t began = 0;                       // tells another runtime in a file of this name
        std::uint64_t updated = 0;                     // never less
        std::map<std::string, GroupSums> sums;         // by table
        std::unordered_map<std::uint64_t, Busy> busy;  // by worker
        bool added = false;
    };

    void add_row(Exposition& out, const Names& names, const statistics::ReadTable& table,
                 const statistics::ReadRow& row, const Labels& more) const;
    void add_sums(Exposition& out, const Names& names, const statistics::ReadTable& table, GroupSums& sums) const;
    void add_users(Exposition& out, const Names& names, const statistics::ReadTable& table, GroupSums& sums) const;
    void add_busy(Exposition& out, const Names& names, const statistics::ReadTable& table, Runtime& runtime) const;

    MetricsOptions options_;
    std::map<std::string, Runtime> runtimes_;  // by segment
};

}  // namespace pollcore::stat
