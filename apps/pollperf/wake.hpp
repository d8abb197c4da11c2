// `pollperf wake`: the cost of each way to wait, in latency and in CPU, beside a bare eventfd and epoll.
//
// An operation is submitted only once in a while, so that the waiting thread has reached the last rung of its ladder.
// Two kinds of waiting are measured: a worker's, by an application's thread that spins, and an application's, by a
// worker that spins. Each is compared with two plain threads: one sleeps in epoll_wait on an eventfd, and the other
// writes to it. All measurements take turns, in rounds.
//
// Thread safety: for the calling thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "config/cpus.hpp"
#include "pollcore/config.hpp"
#include "statistics.hpp"
#include "threads.hpp"

namespace pollcore::perf {

struct WakeOptions {
    DeviceConfig device;
    std::uint32_t core = 0;         ///< CPU of the application's threads
    std::uint32_t worker_core = 0;  ///< CPU of the worker, and of the bare thread in its place
    bool share_core = false;        ///< other runtimes may use the worker's core, too
    std::vector<IdleLadder> ladders;
    std::uint32_t iterations = 0;  ///< for each way to wait, over all rounds
    std::uint32_t rounds = 0;
    std::chrono::microseconds gap{};  ///< between two operations
    std::filesystem::path json;
};

/// One way to wait.
struct WakeRow {
    std::string how;
    Summary latency;                  ///< from the submission to the completion, as the application sees both
    std::optional<double> cpu;        ///< share of its core that the worker took during these operations
    std::optional<double> cpu_idle;   ///< share that the worker took while nothing was submitted
    std::optional<double> full_load;  ///< operations a second with many in flight, the median of the rounds
};

struct WakeResults {
    std::vector<WakeRow> workers;
    WakeRow bare_worker;  ///< eventfd and epoll in place of a worker
    WakeRow application;
    WakeRow bare_application;
    Machine machine;
    std::string device;
    std::uint64_t steal_ms = 0;

    /// Latency as a multiple of the bare one: of a worker that only sleeps, if one was measured, and of the
    /// application.
    [[nodiscard]] std::optional<double> worker_ratio() const;
    [[nodiscard]] double application_ratio() const {
        return application.latency.typical / bare_application.latency.typical;
    }
};

/// Chooses two of this process's CPUs. Throws UsageError.
[[nodiscard]] WakeOptions resolve(const WakeArguments& arguments);
[[nodiscard]] WakeOptions resolve(const WakeArguments& arguments, const config::Cpus& cpus);
[[nodiscard]] WakeResults run_wake(const WakeOptions& options);
/// The report, with tables in Markdown.
[[nodiscard]] std::string report(const WakeOptions& options, const WakeResults& results);

}  // namespace pollcore::perf
