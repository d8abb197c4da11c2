// Making connections: who calls whom, and which attributes a QP gets on the way to RTS.
//
// Two implementations: rdma_cm (librdmacm, for verbs devices) and names (a table inside the process,
// for software devices). Each connects QPs that somebody else made (H13). It changes them only through
// ConnectingQp::modify, so that a runtime can park the QP at its worker around each change.
//
// Thread safety: one control thread makes all calls. Nothing here waits for the peer: progress comes as
// events, taken by next_event() when fd() is readable.
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

#include "device/device.hpp"
#include "pollcore/queue_pair.hpp"

namespace pollcore {

/// The QP of a connection. It is in INIT, on the device's port, with P_Key index 0. `modify` may throw
/// pollcore::Error; the connection then fails with that error.
struct ConnectingQp {
    std::uint32_t qp_num = 0;
    bool srq = false;
    std::function<void(ibv_qp_attr&, int mask)> modify;
    QpType type = QpType::rc;  ///< RC or UC
    FlowBlock flow{};          ///< this side's
};

using ConnectionId = std::uint64_t;  ///< never reused by a connector; 0 is none
using ListenerId = std::uint64_t;

struct ConnectEvent {
    enum class Kind {
        request,       ///< a peer asks: answer with accept() or reject()
        withdrawn,     ///< the peer has given its request up; accept() of the request fails
        established,   ///< the QP is in RTS and the peer knows
        failed,        ///< the connection was not made: `error` and `text` say why (rejected: ECONNREFUSED)
        disconnected,  ///< the peer left, disconnect() was called, or (`error` is ENODEV) the device was removed
    };
    Kind kind{};
    ConnectionId connection = 0;
    /// request: where it came in. failed, without a connection: a request that could not be offered, or the end of the
    /// listener (`text` says which)
    ListenerId listener = 0;
    std::vector<std::byte> private_data;  ///< request, established (at the caller), failed by rejection: the peer's
    int error = 0;                        ///< failed, disconnected: errno value
    std::string text;                     ///< failed: why, as a sentence; request: the peer, for logs
    FlowBlock flow{};                     ///< request, established (at the caller): the peer's
};

class Connector {
public:
    virtual ~Connector() = default;
    Connector(const Connector&) = delete;
    Connector& operator=(const Connector&) = delete;

    /// Addresses: names: any word. rdma_cm: "ADDRESS:PORT" or "[ADDRESS%zone]:PORT", numeric.
    /// Throws pollcore::Error when the address cannot be parsed, is in use, or is not of this device.
    [[nodiscard]] virtual ListenerId listen(const std::string& address) = 0;
    /// Where the listener really is: with the port that the kernel chose for ":0".
    [[nodiscard]] virtual std::string address_of(ListenerId listener) const = 0;
    virtual void stop_listening(ListenerId listener) noexcept = 0;

    /// Begins a connection; ends in `established` or `failed`.
    [[nodiscard]] virtual ConnectionId connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                               std::span<const std::byte> private_data) = 0;
    /// Answers a request; ends in `established` or `failed`.
    virtual void accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                        std::span<const std::byte> private_data) = 0;
    virtual void reject(ConnectionId request, std::span<const std::byte> private_data) = 0;
    /// Tells the peer. Ends in `disconnected`, for a connection that was established.
    virtual void disconnect(ConnectionId connection) = 0;
    /// Forgets a connection or an unanswered request in any state. No event of it comes afterwards. After `failed` or
    /// `disconnected` it does nothing; that is no error.
    virtual void forget(ConnectionId connection) noexcept = 0;

    /// The device raised IBV_EVENT_COMM_EST for this QP: a message came before the last message of the handshake. The
    /// connection counts as `established`. Connectors whose handshake cannot be overtaken have nothing to do.
    virtual void communication_established(std::uint32_t qp_num) { (void)qp_num; }

    /// For connectors that are not told when a peer gives its request up. Each call checks some requests; those given
    /// up come as `withdrawn` events.
    virtual void look_for_withdrawn_requests() {}

    /// Readable when next_event() would return something.
    [[nodiscard]] virtual int fd() const noexcept = 0;
    [[nodiscard]] virtual std::optional<ConnectEvent> next_event() = 0;

protected:
    Connector() = default;
};

/// The connector that fits the device.
[[nodiscard]] std::unique_ptr<Connector> make_connector(Device& device);

}  // namespace pollcore
