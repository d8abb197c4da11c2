// `pollperf wake`: what each way to wait costs, in latency and in CPU, beside a bare eventfd and epoll.
//
// An operation is submitted every once in a while, so that whoever waits has climbed to the last rung of its ladder.
// Two kinds of waiting are measured: a worker's, by an application's thread that spins, and an application's, by a
// worker that spins. Beside each stands the same with two plain threads, of which one sleeps in epoll_wait on an
// eventfd that the other writes. All take turns, in rounds.
//
// Thread safety: the calling thread's.
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
    std::uint32_t core = 0;         ///< of the application's threads
    std::uint32_t worker_core = 0;  ///< of the worker, and of the thread in its place
    bool share_core = false;        ///< the worker's, with other runtimes
    std::vector<IdleLadder> ladders;
    std::uint32_t iterations = 0;  ///< of each way to wait, over all rounds
    std::uint32_t rounds = 0;
    std::chrono::microseconds gap{};  ///< between two operations
    std::filesystem::path json;
};

/// One way to wait.
struct WakeRow {
    std::string how;
    Summary latency;                  ///< from the submission to the completion, as the application sees both
    std::optional<double> cpu;        ///< share of its core that the worker took meanwhile
    std::optional<double> cpu_idle;   ///< while nothing was submitted
    std::optional<double> full_load;  ///< operations a second with many in flight, the median of the rounds
};

struct WakeResults {
    std::vector<WakeRow> workers;
    WakeRow bare_worker;  ///< eventfd and epoll
    WakeRow application;
    WakeRow bare_application;
    Machine machine;
    std::string device;
    std::uint64_t steal_ms = 0;

    /// Of a worker that does nothing but sleep, if there is one; and of the application.
    [[nodiscard]] std::optional<double> worker_ratio() const;
    [[nodiscard]] double application_ratio() const {
        return application.latency.typical / bare_application.latency.typical;
    }
};

/// On the CPUs of this process, of which it takes two. Throws UsageError.
[[nodiscard]] WakeOptions resolve(const WakeArguments& arguments);
[[nodiscard]] WakeOptions resolve(const WakeArguments& arguments, const config::Cpus& cpus);
[[nodiscard]] WakeResults run_wake(const WakeOptions& options);
/// Its tables are Markdown.
[[nodiscard]] std::string report(const WakeOptions& options, const WakeResults& results);

}  // namespace pollcore::perf
