// Finds the stalls of the workers, and what the kernel counted meanwhile.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "control/thread_sample.hpp"
#include "worker/stall_log.hpp"

namespace pollcore {

class StallWatch {
public:
    /// A thread of a worker, and where the worker writes its stalls. `log` must outlive the watch.
    struct Watched {
        pid_t thread = 0;
        const StallLog* log = nullptr;
    };
    explicit StallWatch(const std::vector<Watched>& workers);

    struct Found {
        std::size_t worker = 0;  ///< its place among the watched
        StallLog::Stall stall;
        /// What happened between the last sample before the stall and now. What belongs to the CPU (steal, interrupts)
        /// may be up to kLooksPerCpuSample looks older.
        ThreadSample meanwhile;
    };
    /// Takes a sample of each thread, and calls `take` for each stall since the last look. Stalls that the log no
    /// longer has are left out. `clock` is the workers' clock.
    void look(const std::function<std::uint64_t()>& clock, const std::function<void(const Found&)>& take);

private:
    struct Sample {
        std::uint64_t at = 0;  // on the workers' clock
        ThreadSample counts;
    };
    struct Worker {
        ThreadSampler sampler;
        const StallLog* log;
        std::uint64_t next = 0;  // number of the first stall that was not seen yet
        std::deque<Sample> before;
    };
    [[nodiscard]] static const Sample& last_before(const Worker& worker, std::uint64_t time) noexcept;

    static constexpr std::size_t kSamples = 64;
    // On a machine with many CPUs it takes a millisecond to read what belongs to the CPU.
    static constexpr std::uint64_t kLooksPerCpuSample = 20;

    std::vector<Worker> workers_;
    std::uint64_t looks_ = 0;
};

}  // namespace pollcore
