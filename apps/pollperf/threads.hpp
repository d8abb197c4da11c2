// Threads and CPUs: the CPU of a thread, its context switches and its CPU time.
//
// Thread safety: any thread may call all functions. Do not call them in a timed loop: they are slow.
#pragma once

#include <sched.h>

#include <cstdint>
#include <string>

namespace pollcore::perf {

/// Pins the calling thread to one CPU for the life of the object. The destructor restores the affinity.
class PinnedScope {
public:
    /// Throws pollcore::Error if the kernel refuses the CPU.
    explicit PinnedScope(std::uint32_t cpu);
    ~PinnedScope();
    PinnedScope(const PinnedScope&) = delete;
    PinnedScope& operator=(const PinnedScope&) = delete;

private:
    cpu_set_t before_{};
};

[[nodiscard]] int this_thread_id();

struct ContextSwitches {
    std::uint64_t voluntary = 0;    ///< how often the thread gave up its CPU
    std::uint64_t involuntary = 0;  ///< how often the kernel took the thread off its CPU

    ContextSwitches& operator+=(const ContextSwitches& other) noexcept {
        voluntary += other.voluntary;
        involuntary += other.involuntary;
        return *this;
    }
    friend ContextSwitches operator-(const ContextSwitches& a, const ContextSwitches& b) noexcept {
        return {a.voluntary - b.voluntary, a.involuntary - b.involuntary};
    }
};
/// The context switches of a thread of this process. Throws pollcore::Error if the kernel does not report them.
[[nodiscard]] ContextSwitches context_switches(int thread_id);

/// The CPU time of a thread of this process. Throws pollcore::Error if the kernel does not report it.
[[nodiscard]] std::uint64_t cpu_time_ns(int thread_id);

/// Steal time since boot, in milliseconds: how long a hypervisor ran other machines while this one was ready to run.
[[nodiscard]] std::uint64_t steal_ms();

struct Machine {
    std::string cpu_model;
    std::uint32_t cpus_online = 0;
    std::string kernel;
};
[[nodiscard]] Machine this_machine();

}  // namespace pollcore::perf
