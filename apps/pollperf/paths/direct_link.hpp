// The direct path's connections to another process by rdma_cm. They use the runtime's connector, which the measuring
// thread drives.
//
// Thread safety: one thread uses an object.
// Invariants: each wait takes and acknowledges the device's asynchronous events. A QP cannot be destroyed while one of
// its events is not acknowledged (H16).
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "connect/connector.hpp"
#include "device/device.hpp"
#include "pollperf/paths/path_setup.hpp"

namespace pollcore::perf {

class DirectLink {
public:
    /// The device must outlive the link.
    explicit DirectLink(Device& device);
    ~DirectLink();
    DirectLink(const DirectLink&) = delete;
    DirectLink& operator=(const DirectLink&) = delete;

    /// The QPs must be in state INIT, and outlive the link. Throws MeasurementError when the connection fails. The
    /// error has the peer's reason if the peer gave one.
    std::vector<std::byte> connect(ibv_qp* qp, const std::string& address, const std::vector<std::byte>& private_data,
                                   std::chrono::milliseconds timeout);
    std::string listen(const std::string& address);
    [[nodiscard]] std::optional<PeerRequest> next_request(std::chrono::milliseconds timeout);
    /// Answers the request that next_request() has returned.
    void accept(ibv_qp* qp, const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout);
    void reject(const std::vector<std::byte>& private_data);
    /// Whether the other side of a connection has left.
    [[nodiscard]] bool peer_left();
    /// Ends all connections. Returns when that is complete, or after `timeout`.
    void disconnect(std::chrono::milliseconds timeout);

private:
    using Clock = std::chrono::steady_clock;

    [[nodiscard]] ConnectingQp connecting(ibv_qp* qp);
    /// Waits until events come, but not longer than until `deadline`. Takes all events that have come.
    void take_events(Clock::time_point deadline);
    void take_async_events();
    /// Waits for the event `established` or `failed` of the connection that is being made.
    ConnectEvent await_connection(const std::string& what, std::chrono::milliseconds timeout);

    Device& device_;
    std::unique_ptr<Connector> connector_;
    ConnectionId pending_ = 0;
    std::set<ConnectionId> established_;
    bool peer_left_ = false;
    std::optional<ConnectEvent> outcome_;
    std::deque<ConnectEvent> requests_;
};

/// The text in a peer's refusal; empty if the bytes are not readable text.
[[nodiscard]] std::string refusal_text(const std::vector<std::byte>& private_data);

}  // namespace pollcore::perf
