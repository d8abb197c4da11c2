// What the kernel counts of a thread and of its CPU, to say what happened while the thread made no progress.
//
// Thread safety: one thread for each object.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace pollcore {

/// Counts since the thread started, or, of its CPU, since the machine started. Sources: proc(5) on
/// /proc/PID/task/TID/stat, status and schedstat, and on /proc/stat; Linux's Documentation/scheduler/sched-stats.rst.
struct ThreadSample {
    std::uint64_t voluntary_switches = 0;    ///< it waited in a system call
    std::uint64_t involuntary_switches = 0;  ///< the kernel gave its CPU to another thread
    std::chrono::nanoseconds run_delay{0};   ///< it was ready, and waited for a CPU
    std::chrono::nanoseconds kernel{0};      ///< it ran in the kernel; in steps of a clock tick
    std::uint64_t minor_faults = 0;
    std::uint64_t major_faults = 0;          ///< pages that had to be read
    std::chrono::nanoseconds steal{0};       ///< the hypervisor kept its CPU; in steps of a clock tick
    std::chrono::nanoseconds interrupts{0};  ///< its CPU was in hard and soft interrupts; in steps of a clock tick
    /// kHz; 0: the kernel does not say. A value of the moment, not a count.
    std::uint64_t frequency = 0;

    /// How much each count grew since `before`. The frequency stays.
    [[nodiscard]] ThreadSample since(const ThreadSample& before) const noexcept;
};

/// What the sample of a stall says, such as "waited 3.1 ms for its CPU, 1 involuntary switch". What it says happened
/// at the time of the stall. It need not be the cause.
[[nodiscard]] std::string text_of(const ThreadSample& meanwhile);

class ThreadSampler {
public:
    /// `thread` is of this process. Samples of a thread that has ended are empty.
    explicit ThreadSampler(pid_t thread);

    enum class Cpu : std::uint8_t {
        again,   ///< also reads what belongs to the CPU, which takes long on a machine with many CPUs
        as_read  ///< the counts of the CPU are those of the last call that read them
    };
    /// Makes some system calls, which do not block. Returns nothing if the thread has ended.
    [[nodiscard]] std::optional<ThreadSample> sample(Cpu cpu);

private:
    void read_cpu(int cpu);

    UniqueFd stat_;
    UniqueFd status_;
    UniqueFd schedstat_;
    UniqueFd cpus_;
    int cpu_ = -1;
    UniqueFd frequency_;     // of cpu_
    ThreadSample cpu_read_;  // only what belongs to the CPU
};

// The parts of a sample, from the text of their files. Fields that the text lacks stay as they are.
struct StatFields {
    std::uint64_t minor_faults = 0;
    std::uint64_t major_faults = 0;
    std::uint64_t kernel_ticks = 0;
    int cpu = -1;
};
[[nodiscard]] std::optional<StatFields> parse_stat(std::string_view text);
void parse_status(std::string_view text, ThreadSample& sample);
void parse_schedstat(std::string_view text, ThreadSample& sample);
/// `tick` is the length of a clock tick.
void parse_cpu(std::string_view proc_stat, int cpu, std::chrono::nanoseconds tick, ThreadSample& sample);

}  // namespace pollcore
