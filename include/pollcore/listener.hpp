// Where peers connect, and the peers that ask.
//
// Thread safety: control calls, from any thread, one at a time per object.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pollcore/export.h"
#include "pollcore/queue_pair.hpp"

namespace pollcore {

class ControlSide;
struct IncomingConnection;
struct OpenedListener;

/// A peer that asks for a connection. Unanswered, it is rejected when destroyed.
class POLLCORE_API ConnectionRequest {
public:
    ConnectionRequest() = default;
    /// By Listener.
    POLLCORE_INTERNAL ConnectionRequest(std::shared_ptr<ControlSide> control, std::uint32_t device,
                                        IncomingConnection&& incoming) noexcept;
    ~ConnectionRequest();
    ConnectionRequest(ConnectionRequest&& other) noexcept;
    ConnectionRequest& operator=(ConnectionRequest&& other) noexcept;

    [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
    [[nodiscard]] const std::vector<std::byte>& private_data() const noexcept { return private_data_; }
    /// What the queue pair that accepts it must have.
    [[nodiscard]] FlowControl flow() const noexcept { return flow_.kind; }

    /// Returns when the peer knows. A receive may complete before: the peer may send as soon as it knows.
    void accept(QueuePair& qp, const ConnectOptions& options = {});
    void reject(const std::vector<std::byte>& private_data = {});

private:
    std::shared_ptr<ControlSide> control_;
    std::uint64_t connection_ = 0;
    std::uint32_t device_ = 0;
    std::string peer_;
    std::vector<std::byte> private_data_;
    FlowBlock flow_;
};

/// A place where peers connect.
class POLLCORE_API Listener {
public:
    Listener() = default;
    /// By Context.
    POLLCORE_INTERNAL Listener(std::shared_ptr<ControlSide> control, OpenedListener&& opened) noexcept;
    ~Listener();
    Listener(Listener&& other) noexcept;
    Listener& operator=(Listener&& other) noexcept;

    /// Where it really listens, with the port that was chosen for ":0".
    [[nodiscard]] const std::string& address() const noexcept { return address_; }
    /// The next peer that asks; nothing when none did within the time. At most kListenerBacklogMax wait, and those
    /// whose peer gives up do so no longer. Throws Error(ESHUTDOWN) when the listener was closed or the runtime
    /// stopped; in an attached process Error(EDQUOT) when it holds 64 requests that it has not answered.
    [[nodiscard]] std::optional<ConnectionRequest> next_request(std::chrono::milliseconds timeout);

private:
    std::shared_ptr<ControlSide> control_;
    std::uint64_t id_ = 0;
    std::uint32_t device_ = 0;
    std::string address_;
};

}  // namespace pollcore
