// The options of `pollperf lat`, `bw`, `rate` and `serve`: checked, complete, and with all defaults.
//
// Thread safety: plain values, which one thread reads at the start.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "config/cpus.hpp"
#include "option_values.hpp"
#include "place_options.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollperf/measure/window.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

struct TestOptions : PlaceOptions {
    Test test = Test::lat;
    Role role = Role::both;
    std::vector<Op> ops;
    std::vector<PathKind> paths;
    QpType transport = QpType::rc;
    std::vector<std::uint32_t> sizes;     ///< bytes of a message; atomics always have 8
    std::uint64_t iterations = 0;         ///< of each measurement, over all rounds and threads; 0: by duration
    bool usual_iterations = false;        ///< nobody has asked for that number
    std::chrono::nanoseconds duration{};  ///< of each measurement, over all rounds
    std::optional<std::uint64_t> warmup;  ///< iterations; if empty, a tenth of the measurement
    std::uint32_t rounds = 1;
    std::uint32_t queue_pairs = 1;  ///< of all threads together
    std::uint32_t threads = 1;
    std::uint32_t sessions = 1;  ///< of all threads together
    std::uint32_t tx_depth = 1;
    std::uint32_t rx_depth = 64;
    std::uint32_t post_list = 1;
    std::uint32_t signal_every = 1;  ///< of messages up to kSignalEachAbove bytes, if nobody has asked for a number
    bool usual_signals = false;      ///< nobody has
    bool bidirectional = false;
    std::uint16_t mtu = 0;
    std::optional<Arrivals> arrivals;  ///< an open loop
    FlowControl flow = FlowControl::off;
    bool verify = false;
    bool rdma_cm = false;  ///< connections are made by rdma_cm, not by exchanged information
    bool service = false;  ///< the peer is a service of pollcored, or another program that echoes
    std::string address;   ///< the server's address, without the port
    std::uint16_t port = 0;

    bool report_gbits = false;
    bool brief = false;
    std::filesystem::path json;
    std::filesystem::path csv;
    std::filesystem::path hdr;
    std::filesystem::path report;
    std::optional<double> bytes_per_s_least;
    std::optional<double> operations_per_s_least;
    std::optional<double> p99_ns_most;
    std::filesystem::path baseline;
    double tolerance = 0.05;

    [[nodiscard]] bool uses(PathKind path) const noexcept;
    [[nodiscard]] bool plain_verbs() const noexcept { return uses(PathKind::direct) || uses(PathKind::event); }
    [[nodiscard]] bool has_worker() const noexcept { return uses(PathKind::runtime) || uses(PathKind::attached); }
    /// Whether the measured workers belong to this process.
    [[nodiscard]] bool own_worker() const noexcept {
        return uses(PathKind::runtime) || (uses(PathKind::attached) && attach.empty());
    }
    /// Whether the measuring thread and the worker share one CPU.
    [[nodiscard]] bool one_cpu() const noexcept { return own_worker() && cores.front() == worker_core; }
    /// Operations end at their own completion, and the peer's program does not answer them.
    [[nodiscard]] bool one_sided(Op op) const noexcept {
        return test != Test::lat || is_answered(op) || arrivals.has_value();
    }
};

/// A server: it serves each client as that one asks.
struct ServeOptions : PlaceOptions {
    std::optional<PathKind> path;  ///< of its ends of the connections; if empty, the client's
    std::uint16_t port = 0;
    std::uint32_t clients = 1;                   ///< served at the same time
    bool once = false;                           ///< ends after one client
    std::chrono::milliseconds client_timeout{};  ///< with `once`: how long it waits for the client
};

/// Makes the options from the arguments. The first form uses the CPUs of this process. Throws UsageError, or
/// ConfigError for a mistake in the configuration file.
[[nodiscard]] TestOptions resolve(const TestArguments& arguments);
[[nodiscard]] TestOptions resolve(const TestArguments& arguments, const config::Cpus& cpus);
/// For a server: `pollperf serve`, or another command without an address.
[[nodiscard]] ServeOptions resolve_server(const TestArguments& arguments);
[[nodiscard]] ServeOptions resolve_server(const TestArguments& arguments, const config::Cpus& cpus);
/// Whether these arguments make a server.
[[nodiscard]] bool is_server(const TestArguments& arguments);

/// Bytes of a message of this operation.
[[nodiscard]] constexpr std::uint32_t size_of(Op op, std::uint32_t size) noexcept {
    return is_atomic(op) ? kAtomicSize : size;
}
/// Each longer message has a completion, unless --cq-mod says otherwise, as in perftest.
inline constexpr std::uint32_t kSignalEachAbove = 8192;
/// The memory of each end.
[[nodiscard]] EndLayout layout_of(const TestOptions& options);
/// No more bytes than these for the buffers of all ends on one path, but for two buffers of each kind on each end.
inline constexpr std::uint64_t kBufferBytesMost = 256ull << 20;
/// The iterations of a measurement with messages of this size, over all rounds and threads. 0: by duration.
[[nodiscard]] std::uint64_t iterations_of(const TestOptions& options, std::uint32_t size) noexcept;

}  // namespace pollcore::perf
