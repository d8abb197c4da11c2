// `pollperf wake`: the cost of each way to wait, in latency and in CPU time, compared with a bare eventfd and epoll.
//
// An operation is submitted only once in a while, so that the waiting thread has reached the last rung of its ladder
// (the last way to wait of its `idle` list). There are two kinds of measurement. In the first, a worker waits while the
// application's thread spins. In the second, the application's thread waits while the worker spins. Each is compared
// with two plain threads: one sleeps in epoll_wait on an eventfd, and the other writes to the eventfd. All measurements
// take turns, in rounds.
//
// Thread safety: used by the calling thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "config/cpus.hpp"
#include "figures.hpp"
#include "pollcore/config.hpp"
#include "threads.hpp"

namespace pollcore::perf {

struct WakeOptions {
    DeviceConfig device;
    std::uint32_t core = 0;         ///< CPU of the application's threads
    std::uint32_t worker_core = 0;  ///< CPU of the worker, and of the plain thread in the worker's place
    bool share_core = false;        ///< other runtimes may use the worker's core, too
    std::vector<IdleLadder> ladders;
    std::uint32_t iterations = 0;  ///< for each way to wait, over all rounds
    std::uint32_t rounds = 0;
    std::chrono::microseconds gap{};  ///< time between two operations
    std::filesystem::path json;
};

/// The results for one way to wait.
struct WakeRow {
    std::string how;
    Summary latency;                  ///< from the submission to the completion, or until the application is awake
    std::optional<double> cpu;        ///< share of a core that the worker used during the operations
    std::optional<double> cpu_idle;   ///< share of a core that the worker used while nothing was submitted
    std::optional<double> full_load;  ///< operations per second with many in flight; the median of the rounds
};

struct WakeResults {
    std::vector<WakeRow> workers;
    WakeRow bare_worker;  ///< a plain thread with eventfd and epoll in place of a worker
    WakeRow application;
    WakeRow bare_application;  ///< a plain thread with eventfd and epoll in place of the application's thread
    Machine machine;
    std::string device;
    std::uint64_t steal_ms = 0;

    /// The latency of a worker that only sleeps as a multiple of bare_worker's; nullopt if no such worker was measured.
    [[nodiscard]] std::optional<double> worker_ratio() const;
    /// The latency of the application as a multiple of bare_application's.
    [[nodiscard]] double application_ratio() const {
        return application.latency.typical / bare_application.latency.typical;
    }
};

/// Makes the options from the arguments. The first form chooses two of this process's CPUs. Throws UsageError.
[[nodiscard]] WakeOptions resolve(const WakeArguments& arguments);
[[nodiscard]] WakeOptions resolve(const WakeArguments& arguments, const config::Cpus& cpus);
[[nodiscard]] WakeResults run_wake(const WakeOptions& options);
/// The report, with tables in Markdown.
[[nodiscard]] std::string report(const WakeOptions& options, const WakeResults& results);

}  // namespace pollcore::perf
