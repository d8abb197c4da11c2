// Listeners, and the connection requests of peers.
//
// Thread safety: any thread may make any call, one at a time per object.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/event.hpp"
#include "pollcore/export.h"
#include "pollcore/queue_pair.hpp"

namespace pollcore {

class ControlSide;
struct IncomingConnection;
struct OpenedListener;

/// A peer's request for a connection. The destructor rejects a request that was not answered. Move-only.
class POLLCORE_API ConnectionRequest {
public:
    ConnectionRequest() = default;
    /// Made by Listener.
    POLLCORE_INTERNAL ConnectionRequest(std::shared_ptr<ControlSide> control, std::uint32_t device,
                                        IncomingConnection&& incoming) noexcept;
    ~ConnectionRequest();
    ConnectionRequest(ConnectionRequest&& other) noexcept;
    ConnectionRequest& operator=(ConnectionRequest&& other) noexcept;

    /// The peer's address as "ADDRESS:PORT" over rdma_cm; with names, the peer's queue pair and device.
    [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
    /// The peer's bytes. At a listener with PrivateDataForm::raw, exactly what arrived, with its padding.
    [[nodiscard]] const std::vector<std::byte>& private_data() const noexcept { return private_data_; }
    /// How many reads and atomics the peer serves at once. The accepting queue pair has at most that many in flight.
    [[nodiscard]] std::uint8_t max_dest_rd_atomic() const noexcept { return max_dest_rd_atomic_; }
    /// The flow control that the accepting queue pair must have.
    [[nodiscard]] FlowControl flow() const noexcept { return flow_.kind; }

    /// Connects `qp` to the peer and ends the request. Returns when the peer knows that it is connected. A receive may
    /// complete before this call returns, because the peer may send at once.
    void accept(QueuePair& qp, const ConnectOptions& options = {});
    /// Begins accept() and ends the request. EventType::established or EventType::connect_failed follows for `qp`
    /// within options.timeout, even if the peer never answers.
    void begin_accept(QueuePair& qp, const ConnectOptions& options = {});
    /// Refuses the connection, sends `private_data` (at most kRejectPrivateDataMax bytes, or kRawRejectPrivateDataMax
    /// in the raw form) and ends the request.
    void reject(const std::vector<std::byte>& private_data = {});
    /// Refuses the connection for this reason, which is sent as private data. The peer's error message contains it. A
    /// text of more than kRejectPrivateDataMax bytes is cut.
    void reject_because(std::string_view reason);

private:
    std::shared_ptr<ControlSide> control_;
    std::uint64_t connection_ = 0;
    std::uint32_t device_ = 0;
    std::string peer_;
    std::vector<std::byte> private_data_;
    FlowBlock flow_;
    std::uint8_t max_dest_rd_atomic_ = 0;
};

/// An address where peers connect. The destructor stops listening. Move-only.
class POLLCORE_API Listener {
public:
    Listener() = default;
    /// Made by Context.
    POLLCORE_INTERNAL Listener(std::shared_ptr<ControlSide> control, OpenedListener&& opened) noexcept;
    ~Listener();
    Listener(Listener&& other) noexcept;
    Listener& operator=(Listener&& other) noexcept;

    /// The address of this listener. If ":0" was asked for, the address has the port that was chosen.
    [[nodiscard]] const std::string& address() const noexcept { return address_; }
    /// Event::listener of this listener's events.
    [[nodiscard]] ListenerHandle handle() const noexcept { return {id_, device_}; }
    /// Returns the next connection request, or nothing when no request came within the time. At most
    /// kListenerBacklogMax requests wait. A waiting request whose peer gives up is dropped. Throws Error(ESHUTDOWN)
    /// when the listener was closed or the runtime stopped. In an attached process, throws Error(EDQUOT) when the
    /// process holds 64 requests that it has not answered.
    [[nodiscard]] std::optional<ConnectionRequest> next_request(std::chrono::milliseconds timeout);

private:
    std::shared_ptr<ControlSide> control_;
    std::uint64_t id_ = 0;
    std::uint32_t device_ = 0;
    std::string address_;
};

}  // namespace pollcore
