// What disturbs measurements, and what a reader should know before believing their figures.
//
// Thread safety: one thread uses a NoiseWatch; it reads what the kernel counts of other threads. The functions are
// pure, but for host_facts(), which reads files. Do not call them in a timed loop: they are slow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// What is known of this host. Facts that the kernel does not tell are empty. `root` is the directory that has /sys.
[[nodiscard]] HostFacts host_facts(const std::filesystem::path& root = "/");

/// Watches the kernel's counters during a part of a measurement. What the kernel does not count is 0.
class NoiseWatch {
public:
    /// `threads` are the kernel ids of the measuring threads, all of this process, and `cpus` their CPUs. `worker` is
    /// the thread of the measured worker, if it belongs to this process. `root` is the directory that has /sys and
    /// /proc.
    NoiseWatch(std::vector<int> threads, std::vector<std::uint32_t> cpus, std::optional<int> worker = std::nullopt,
               std::filesystem::path root = "/");

    void begin();
    /// What has happened since begin(). The frequencies are those at the begin and at the end. A thread that has ended
    /// meanwhile counts as undisturbed.
    [[nodiscard]] Disturbance end();

private:
    /// The counters of a thread, as far as the kernel tells them.
    struct Counts {
        std::optional<ContextSwitches> switches;
        std::optional<std::uint64_t> migrations;  ///< since the thread began
        std::optional<int> cpu;                   ///< where the thread ran last
    };
    [[nodiscard]] Counts read(int thread) const;
    /// Reads the frequencies of the CPUs into a Disturbance that may have some already.
    void add_frequencies(Disturbance& disturbance) const;

    std::vector<int> threads_;
    std::vector<std::uint32_t> cpus_;
    std::optional<int> worker_;
    std::filesystem::path root_;
    std::uint64_t steal_ms_ = 0;
    std::vector<Counts> counts_;  ///< of threads_, at the begin
    Counts worker_counts_;
    Disturbance at_begin_;  ///< only frequencies
};

// The bounds of noise_warnings().
inline constexpr double kStealMost = 0.01;               ///< as a share of a measurement's time
inline constexpr double kFrequencySpreadMost = 0.10;     ///< as a share of the highest frequency
inline constexpr double kInvoluntaryPerSecondMost = 50;  ///< of a thread; each lasts microseconds at least
inline constexpr std::uint64_t kInvoluntaryLeast = 10;   ///< fewer say nothing about a rate
inline constexpr double kRoundSpreadMost = 0.10;         ///< interquartile range, as a share of the median
inline constexpr std::size_t kRoundsForSpread = 4;
inline constexpr std::uint64_t kSamplesForP999 = 1000;
inline constexpr double kPostedLateMost = 0.01;  ///< as a share of the operations

/// Sentences, with figures, that say which results not to believe, and why. If several measurements have the same
/// trouble, one sentence has the worst of them, and how many others there are.
[[nodiscard]] std::vector<std::string> noise_warnings(const Results& results);

}  // namespace pollcore::perf
