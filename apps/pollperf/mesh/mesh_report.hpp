// What a mesh has measured, and its outputs: the table, the JSON document, and the lines for a spreadsheet.
//
// Thread safety: plain values, and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// [from][to]; empty on the diagonal, and where nothing was measured.
using Matrix = std::vector<std::vector<std::optional<double>>>;
[[nodiscard]] Matrix empty_matrix(std::size_t ranks);

/// A rank, and what disturbed it while it sent.
struct MeshRank {
    std::string host;
    std::uint32_t cpu = 0;
    std::string device;
    bool yields = false;  ///< or sleeps: how it waits for messages
    HostFacts facts;
    double seconds = 0;  ///< that it has measured
    std::uint64_t steal_ms = 0;
    std::uint64_t involuntary_switches = 0;
};

/// All send to one rank at the same time.
struct Incast {
    int to = 0;
    std::vector<int> senders;
    std::vector<double> bytes_per_s;  ///< of each sender

    [[nodiscard]] double together() const noexcept;
};

/// A pair that is much worse than the others.
struct Outlier {
    std::string what;  ///< "latency" or "bandwidth"
    int from = 0;
    int to = 0;
    double value = 0;
    double median = 0;  ///< of the pairs that it is compared with
    double worse = 0;   ///< as a share of the median
    std::string text;   ///< a sentence
};

struct MeshResults {
    std::string command;
    std::string began;  ///< in UTC, as "2026-11-29T07:20:00Z"
    std::vector<std::pair<std::string, std::string>> settings;
    std::vector<MeshRank> ranks;
    std::string op;  ///< of bandwidth, incast and all to all
    std::uint32_t size = 0;
    std::uint32_t latency_size = 0;
    std::optional<Matrix> latency_ns;  ///< medians
    std::optional<Matrix> latency_p99_ns;
    std::optional<Matrix> bandwidth_bytes_per_s;
    std::vector<Incast> incast;
    std::vector<double> all_to_all_bytes_per_s;  ///< of each rank; empty: not measured
    double outlier = 0.2;                        ///< as a share of the median
};

/// The pairs that are worse than the median by more than MeshResults::outlier and by more than 3 median absolute
/// deviations, the worst first. If there are several hosts, the pairs within hosts and the pairs between hosts are
/// compared apart, because their ways differ.
[[nodiscard]] std::vector<Outlier> outliers(const MeshResults& results);
/// Sentences: what a reader should know before believing the figures.
[[nodiscard]] std::vector<std::string> mesh_warnings(const MeshResults& results);

/// The report for people. No line is wider than kReportColumns.
[[nodiscard]] std::string mesh_text(const MeshResults& results);
[[nodiscard]] nlohmann::ordered_json mesh_json(const MeshResults& results);
/// A heading, and a line for each pair.
[[nodiscard]] std::string mesh_csv(const MeshResults& results);

}  // namespace pollcore::perf
