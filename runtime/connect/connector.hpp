// Makes connections between QPs, and sets the attributes that a QP needs on its way to RTS.
//
// There are two implementations: rdma_cm (librdmacm, for verbs devices) and names (a table inside the process, for
// software devices). Both connect QPs that the caller has made (H13). They change a QP only through
// ConnectingQp::modify, so that a runtime can park the QP at its worker around each change.
//
// Thread safety: one control thread makes all calls. No call waits for the peer. Progress is reported as events: when
// fd() is readable, call next_event().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

#include "base/called.hpp"
#include "device/device.hpp"
#include "pollcore/queue_pair.hpp"

namespace pollcore {

/// The QP of a connection. It is in INIT, on the device's port, with P_Key index 0. If `modify` throws pollcore::Error,
/// the connection fails with that error.
struct ConnectingQp {
    std::uint32_t qp_num = 0;
    bool srq = false;
    std::function<void(ibv_qp_attr&, int mask)> modify;
    QpType type = QpType::rc;  ///< RC or UC
    FlowBlock flow{};          ///< this side's control block and kind of flow control
    /// The form of the private data of a connection that this QP asks for. If this QP accepts one, the listener's form
    /// counts.
    PrivateDataForm form = PrivateDataForm::framed;
    std::string name{};  ///< QueuePairOptions::name

    [[nodiscard]] Called called() const noexcept { return {qp_num, name}; }
};

using ConnectionId = std::uint64_t;  ///< a connector never reuses an id; 0: no connection
using ListenerId = std::uint64_t;

struct ConnectEvent {
    enum class Kind {
        request,       ///< a peer asks for a connection: answer with accept() or reject()
        withdrawn,     ///< the peer has given up its request; accept() of the request fails
        established,   ///< the QPs of both sides are in RTS
        failed,        ///< the connection was not made: `error` and `text` say why (rejected: ECONNREFUSED)
        disconnected,  ///< the peer left, disconnect() was called, or the device was removed (ENODEV)
    };
    Kind kind{};
    ConnectionId connection = 0;
    /// For `request`: the listener that got it. For `failed` with `connection` 0: the listener that has ended, or that
    /// could not offer a request (`text` says which).
    ListenerId listener = 0;
    /// The peer's private data: in `request`, in `established` on the calling side, and in `failed` after a rejection.
    std::vector<std::byte> private_data;
    int error = 0;     ///< failed, disconnected: errno value
    std::string text;  ///< failed, or device removed: the reason, as a sentence; request: the peer's name, for logs
    FlowBlock flow{};  ///< the peer's: in `request`, and in `established` on the calling side
    std::uint8_t max_dest_rd_atomic = 0;  ///< request: reads and atomics that the peer serves at once
};

class Connector {
public:
    virtual ~Connector() = default;
    Connector(const Connector&) = delete;
    Connector& operator=(const Connector&) = delete;

    /// For a names connector, an address is any word. For an rdma_cm connector, it is "ADDRESS:PORT" or
    /// "[ADDRESS%zone]:PORT", numeric. Throws pollcore::Error if the address cannot be parsed, is in use, or belongs to
    /// another device.
    [[nodiscard]] virtual ListenerId listen(const std::string& address, PrivateDataForm form) = 0;
    [[nodiscard]] ListenerId listen(const std::string& address) { return listen(address, PrivateDataForm::framed); }
    /// The address on which the listener listens. If listen() was called with port 0, it contains the port that the
    /// kernel chose.
    [[nodiscard]] virtual std::string address_of(ListenerId listener) const = 0;
    virtual void stop_listening(ListenerId listener) noexcept = 0;

    /// Begins a connection. The event `established` or `failed` follows.
    [[nodiscard]] virtual ConnectionId connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                               std::span<const std::byte> private_data) = 0;
    /// Accepts a request. The event `established` or `failed` follows.
    virtual void accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                        std::span<const std::byte> private_data) = 0;
    virtual void reject(ConnectionId request, std::span<const std::byte> private_data) = 0;
    /// Ends an established connection and tells the peer. The event `disconnected` follows.
    virtual void disconnect(ConnectionId connection) = 0;
    /// Forgets a connection or an unanswered request in any state. No event of this connection comes afterwards. After
    /// `failed` or `disconnected`, this call does nothing.
    virtual void forget(ConnectionId connection) noexcept = 0;

    /// Call this when the device has raised IBV_EVENT_COMM_EST for this QP: the peer's first message arrived before the
    /// last message of the handshake. The connection then counts as established. A connector whose handshake no message
    /// can overtake does nothing here.
    virtual void communication_established(std::uint32_t qp_num) { (void)qp_num; }

    /// For connectors that get no event when a peer gives up its request. Each call checks some requests, and makes a
    /// `withdrawn` event for each request that was given up.
    virtual void look_for_withdrawn_requests() {}

    /// Readable when next_event() may return an event.
    [[nodiscard]] virtual int fd() const noexcept = 0;
    [[nodiscard]] virtual std::optional<ConnectEvent> next_event() = 0;

protected:
    Connector() = default;
};

/// Makes the kind of connector that fits the device.
[[nodiscard]] std::unique_ptr<Connector> make_connector(Device& device);

}  // namespace pollcore
