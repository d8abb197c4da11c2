// The direct path's connection to another process: the runtime's connector, driven by the measuring thread.
//
// Thread safety: one thread uses an object.
// Invariants: a wait takes and acknowledges the device's asynchronous events, which would otherwise keep a QP from
// being destroyed (H16).
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connect/connector.hpp"
#include "device/device.hpp"
#include "path_setup.hpp"

namespace pollcore::perf {

class DirectLink {
public:
    /// The QP is in INIT; it and the device must outlive the link.
    DirectLink(Device& device, ibv_qp* qp);
    ~DirectLink();
    DirectLink(const DirectLink&) = delete;
    DirectLink& operator=(const DirectLink&) = delete;

    /// Throws MeasurementError when there is no connection, with the peer's reason if it gave one.
    std::vector<std::byte> connect(const std::string& address, const std::vector<std::byte>& private_data,
                                   std::chrono::milliseconds timeout);
    std::string listen(const std::string& address);
    [[nodiscard]] std::optional<PeerRequest> next_request(std::chrono::milliseconds timeout);
    void accept(const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout);
    void reject(const std::vector<std::byte>& private_data);
    [[nodiscard]] bool peer_left();
    /// Returns when the peer has been told, or when the time is up.
    void disconnect(std::chrono::milliseconds timeout);

private:
    using Clock = std::chrono::steady_clock;

    [[nodiscard]] ConnectingQp connecting();
    /// Waits for events until `deadline` at most, and takes all that have come.
    void take_events(Clock::time_point deadline);
    void take_async_events();
    /// Waits for `established` or `failed` of our connection.
    ConnectEvent await_connection(const std::string& what, std::chrono::milliseconds timeout);

    Device& device_;
    ibv_qp* qp_;
    std::unique_ptr<Connector> connector_;
    ConnectionId connection_ = 0;
    bool established_ = false;
    bool peer_left_ = false;
    std::optional<ConnectEvent> outcome_;
    std::deque<ConnectEvent> requests_;
};

/// The text of a peer's refusal if it is readable; else empty.
[[nodiscard]] std::string refusal_text(const std::vector<std::byte>& private_data);

}  // namespace pollcore::perf
