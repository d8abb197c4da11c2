// A client's side of the control channel: it tells a pollperf server what to do.
//
// Thread safety: one thread at a time makes the calls, except look(), which the measuring threads call. Errors:
// MeasurementError, also if the server reports a failure or leaves.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "pollperf/measure/path_run.hpp"
#include "pollperf/options.hpp"
#include "pollperf/peer/control_channel.hpp"
#include "pollperf/peer/letters.hpp"
#include "pollperf/report/results.hpp"

namespace pollcore::perf {

class Client {
public:
    /// Connects to the server.
    explicit Client(const TestOptions& options);

    [[nodiscard]] const HostFacts& host() const noexcept { return host_; }
    /// The address by which this host reaches the server.
    [[nodiscard]] std::string own_address() const { return channel_.own_address(); }

    struct Opened {
        std::uint32_t id = 0;
        PathKind path{};            ///< of the server's ends
        std::uint16_t mtu = 0;      ///< of the server's port
        std::string device;         ///< description of the server's device
        std::vector<EndInfo> ends;  ///< of the server
    };
    /// The server makes its ends of a path's connections. It uses the same path, if nobody has told it another one.
    [[nodiscard]] Opened open(PathKind path, const ConnectionPlan& plan);
    /// Connects the two sides.
    void connect(PathRun& path, const Opened& opened, const ConnectionPlan& plan);

    void begin(std::uint32_t id, const Workload& workload);
    /// The server serves, and with `sends` also sends.
    void start(std::uint32_t id, const std::optional<Until>& sends);
    /// Waits until the server has sent all.
    void await_sent(std::uint32_t id);
    struct Sent {
        std::uint64_t operations = 0;
        double seconds = 0;
    };
    /// The server stops serving. Returns what it has sent since start().
    Sent stop(std::uint32_t id);
    struct Counted {
        std::uint64_t arrived = 0;          ///< at all ends of the server
        std::vector<std::uint64_t> posted;  ///< by each end of the server
    };
    /// The server counts, and with --verify checks, what has arrived of the messages that each end has posted.
    Counted count(std::uint32_t id, const std::vector<std::uint64_t>& posted);
    void close(std::uint32_t id);

    /// Throws if the server has reported a failure, or has left. Does nothing while another thread waits for an answer,
    /// which will learn the same.
    void look();

private:
    nlohmann::json ask(const nlohmann::json& request);

    const std::chrono::milliseconds timeout_;
    std::mutex mutex_;  ///< held by whoever uses the channel
    ControlChannel channel_;
    HostFacts host_;
};

}  // namespace pollcore::perf
