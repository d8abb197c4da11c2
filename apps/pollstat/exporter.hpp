// Offers the figures of this host's runtimes to Prometheus: pollstat --prometheus.
//
// Thread safety: one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exposition.hpp"
#include "metrics.hpp"
#include "pollcore/statistics.hpp"
#include "stat_options.hpp"

namespace pollcore::stat {

/// Reads segments, and keeps their metrics as a text for a short time.
class Exporter {
public:
    /// `wanted` is a runtime as on the command line; empty: all of them.
    Exporter(std::string wanted, MetricsOptions options);

    /// The metrics of now, or of a moment ago. Reading and writing them takes at most a tenth of the time, however many
    /// clients ask.
    [[nodiscard]] std::shared_ptr<const std::string> text();

    struct Segment {
        std::filesystem::path file;
        std::uint32_t owner = 0;
        std::size_t bytes = 0;
    };

private:
    using Clock = std::chrono::steady_clock;
    /// What the runtimes of one user may take.
    struct Share {
        std::size_t segments;
        std::size_t bytes;
        std::size_t samples;
    };

    [[nodiscard]] std::string build();
    void add_segment(Exposition& out, const Segment& segment);
    void add_snapshot(Exposition& out, const Segment& segment, const statistics::Snapshot& snapshot);
    /// A dead runtime is told of only if this exporter has seen no later one with its name. Of several, the last one
    /// is.
    void add_dead(Exposition& out);

    const std::string wanted_;
    Metrics metrics_;
    std::shared_ptr<const std::string> text_;
    Clock::time_point valid_until_;

    using Name = std::pair<std::uint32_t, std::string>;  // the owner and the name of a runtime
    /// When the last runtime with each name began that was seen alive; only names that still have a segment.
    std::map<Name, std::uint64_t> seen_;

    // Of one scrape.
    struct Dead {
        Segment segment;
        statistics::Snapshot snapshot;  // without tables
    };
    std::set<Name> alive_;
    std::map<Name, Dead> dead_;
    std::map<std::uint32_t, Share> shares_;            // by the owner of segments
    std::map<std::string, std::uint64_t> unreadable_;  // by reason
    std::size_t left_out_ = 0;
    std::size_t matched_ = 0;
    std::uint64_t scrapes_ = 0;
};

/// Serves until SIGTERM or SIGINT, and returns an exit code. Throws Error.
[[nodiscard]] int serve_prometheus(const Options& options);

}  // namespace pollcore::stat
