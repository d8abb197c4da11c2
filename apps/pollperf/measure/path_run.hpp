// One path of a measurement: the connections of all its threads, and the loops on them.
//
// Thread safety: one thread calls the functions, except that stop_serving() may be called by any. The measuring threads
// run within the calls. Errors: MeasurementError and pollcore::Error.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pollperf/measure/window.hpp"
#include "pollperf/measure/workload.hpp"
#include "pollperf/paths/path_setup.hpp"
#include "pollperf/report/results.hpp"

namespace pollcore::perf {

/// What all threads of a path have in common.
struct PathPlan {
    Role role = Role::both;
    unsigned connections = 1;             ///< of each thread
    std::vector<std::uint32_t> cores;     ///< the CPU of each thread
    std::chrono::milliseconds timeout{};  ///< longest wait for a single message
    bool warm_rounds = true;  ///< each round of a closed loop begins with a few operations that do not count
    int worker_thread = 0;    ///< kernel id of the first worker's thread; 0: it belongs to another process
    /// Called now and then during long waits. Throws if the measurement has to end.
    std::function<void()> look_about{};
};

class PathRun {
public:
    virtual ~PathRun() = default;
    PathRun(const PathRun&) = delete;
    PathRun& operator=(const PathRun&) = delete;

    [[nodiscard]] virtual PathKind kind() const noexcept = 0;

    // ---- connections ----

    /// Connects the two ends of each connection within this process.
    virtual void connect_ends() = 0;
    /// The ends of all threads, one thread after the other.
    [[nodiscard]] virtual std::vector<EndInfo> own_ends() const = 0;
    /// Connects each end with the peer's end of the same index.
    virtual void connect(std::span<const EndInfo> peers) = 0;
    /// Takes the peer's memory, for connections by rdma_cm.
    virtual void set_remote(std::span<const EndInfo> peers) = 0;
    /// rdma_cm: each thread listens for its connections at its own of the addresses. Returns them with their ports.
    [[nodiscard]] virtual std::vector<std::string> listen(std::span<const std::string> addresses) = 0;
    /// rdma_cm: accepts all connections that listen() is there for. A connection has to bring `token`.
    virtual void accept_all(const std::vector<std::byte>& token, std::chrono::milliseconds timeout) = 0;
    /// rdma_cm: makes all connections to the addresses of the peer's threads.
    virtual void connect_all(std::span<const std::string> addresses, const std::vector<std::byte>& token,
                             std::chrono::milliseconds timeout) = 0;
    /// rdma_cm: connects the only end to a service. Returns the private data of its answer.
    virtual std::vector<std::byte> connect_service(const std::string& address, std::chrono::milliseconds timeout) = 0;
    virtual void disconnect(std::chrono::milliseconds timeout) = 0;

    // ---- measuring ----

    /// Gets ready for a workload; both sides do, before either of them begins. No request may be in flight.
    virtual void begin(const Workload& workload, const std::optional<Arrivals>& arrivals) = 0;
    /// Operations that are not timed. `until` is for all threads together, here and in round().
    virtual void warm_up(const Until& until) = 0;
    /// With `sent`: calls it when all threads are done, and then serves until stop_serving(), because the peer may
    /// still be sending.
    virtual void round(const Until& until, const std::function<void()>& sent = {}) = 0;
    /// The measurement since begin().
    [[nodiscard]] virtual Measurement result() = 0;

    // ---- the other side ----

    /// Answers the client, or posts receives again, until stop_serving().
    virtual void serve() = 0;
    /// Ends the serve() or round() that is under way, or the next one.
    virtual void stop_serving() noexcept = 0;
    /// How many messages the ends have posted since begin().
    [[nodiscard]] virtual std::vector<std::uint64_t> posted() const = 0;
    /// How many messages have arrived at each end since begin(). Waits for those that are missing of `expected`, as
    /// long as others come. With Workload::verify, checks what the peer has written.
    [[nodiscard]] virtual std::vector<std::uint64_t> arrived(std::span<const std::uint64_t> expected) = 0;

protected:
    PathRun() = default;
};

}  // namespace pollcore::perf
