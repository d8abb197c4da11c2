// Threads and CPUs: where a thread runs, and what the kernel took from it.
//
// Thread safety: any thread may call all functions. None belongs into a timed loop.
#pragma once

#include <sched.h>

#include <cstdint>
#include <string>

namespace pollcore::perf {

/// Pins the calling thread to one CPU for the life of the object. The destructor restores the affinity.
class PinnedScope {
public:
    /// Throws pollcore::Error when the CPU cannot be had.
    explicit PinnedScope(std::uint32_t cpu);
    ~PinnedScope();
    PinnedScope(const PinnedScope&) = delete;
    PinnedScope& operator=(const PinnedScope&) = delete;

private:
    cpu_set_t before_{};
};

[[nodiscard]] int this_thread_id();

/// How often the kernel has taken a thread off its CPU, or the thread gave it up.
struct ContextSwitches {
    std::uint64_t voluntary = 0;
    std::uint64_t involuntary = 0;

    ContextSwitches& operator+=(const ContextSwitches& other) noexcept {
        voluntary += other.voluntary;
        involuntary += other.involuntary;
        return *this;
    }
    friend ContextSwitches operator-(const ContextSwitches& a, const ContextSwitches& b) noexcept {
        return {a.voluntary - b.voluntary, a.involuntary - b.involuntary};
    }
};
/// The context switches of a thread of this process. Throws pollcore::Error when the kernel does not say.
[[nodiscard]] ContextSwitches context_switches(int thread_id);

/// CPU time of a thread of this process. Throws pollcore::Error when the kernel does not say.
[[nodiscard]] std::uint64_t cpu_time_ns(int thread_id);

/// Time that a hypervisor gave to others while this machine's CPUs wanted to run, in milliseconds since boot.
[[nodiscard]] std::uint64_t steal_ms();

struct Machine {
    std::string cpu_model;
    std::uint32_t cpus_online = 0;
    std::string kernel;
};
[[nodiscard]] Machine this_machine();

}  // namespace pollcore::perf
