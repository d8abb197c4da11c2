// What the kernel counts for each CPU.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "facts.hpp"

namespace pollcore::doctor {

/// A row of /proc/interrupts or /proc/softirqs (proc(5)): a label, a count for each CPU, and what the interrupt is for.
struct CountedRow {
    std::string label;  ///< "24", "LOC", "TIMER"
    std::map<std::uint32_t, std::uint64_t> by_cpu;
    std::string what;  ///< "PCI-MSI-0000:3b:00.0 1-edge mlx5_comp0"; empty in /proc/softirqs

    [[nodiscard]] bool is_of_a_device() const noexcept {
        return !label.empty() && label.find_first_not_of("0123456789") == label.npos;
    }
};
/// Empty if the text has no line of CPUs at its begin.
[[nodiscard]] std::vector<CountedRow> counted_rows(const std::string& text);

/// How much a row grew on a CPU.
struct Growth {
    std::string label;
    std::string what;
    std::uint64_t count = 0;
    bool of_a_device = false;
};
/// The two readings of such a file. On a large host it has megabytes, so it is taken apart once for all CPUs.
class CountedTwice {
public:
    CountedTwice(const Facts& facts, const std::string& file);

    /// The rows that grew on the CPU between the readings, the largest first. Nothing if there is only one reading, or
    /// the file cannot be read.
    [[nodiscard]] std::optional<std::vector<Growth>> on(std::uint32_t cpu) const;

private:
    std::map<std::string, CountedRow> before_;
    std::vector<CountedRow> after_;
};

/// Says that the file was read only once, or why it could not be read.
[[nodiscard]] Finding no_second_reading(const Facts& facts, const JudgedWorker& worker, const std::string& file);

/// A line of /proc/schedstat (Documentation/scheduler/sched-stats.rst), versions 15 and later.
struct RunQueue {
    double ran_ns = 0;     ///< time for which tasks ran on the CPU
    double waited_ns = 0;  ///< time for which tasks waited for it
    double slices = 0;     ///< how often a task began to run
};
[[nodiscard]] std::optional<RunQueue> run_queue(const Tree& tree, std::uint32_t cpu);

/// A line "cpu3 ..." of /proc/stat (proc_stat(5)), in ticks of USER_HZ, of which a second has 100.
struct CpuTimes {
    double total = 0;
    double steal = 0;
};
/// Without a CPU: of all together.
[[nodiscard]] std::optional<CpuTimes> cpu_times(const Tree& tree, std::optional<std::uint32_t> cpu);

/// Whether the first CPU in /proc/cpuinfo has the flag, such as "hypervisor". Nothing if the file names no flags.
[[nodiscard]] std::optional<bool> has_cpu_flag(const Tree& tree, const std::string& flag);

}  // namespace pollcore::doctor
