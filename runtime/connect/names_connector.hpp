// Connections between software devices of this process. A listener has a name, and a peer connects to this name.
//
// Software devices with the same fabric name can connect to each other, and their connectors share a table of names.
// Like rdma_cm, the connectors exchange the messages of a three-way handshake (request, reply, ready). The messages go
// through inboxes, so the connectors may belong to different threads, runtimes and devices. A connector that is
// destroyed disconnects its connections.
//
// Thread safety: each connector belongs to one thread at a time. Connectors of different threads share only the table
// and the inboxes, which have their own locks.
//
// Memory: a new connection allocates everything that its answer and its end will need (D29). Only the sentence that
// says why the connection ended is left out if there is no memory for the sentence.
//
// Invariants: each connection that connect() or accept() has begun gets exactly one event, `established` or `failed`,
// unless it is forgotten before. An established connection gets at most one `disconnected`. The QP of the passive side
// is in RTS before the active side gets the reply.
//
//   names_connector.cc  the caller's calls      names_messages.cc  messages from the other side
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connect/connector.hpp"
#include "connect/names_fabric.hpp"
#include "device/soft/soft_device.hpp"

namespace pollcore {

/// The device must outlive the connector.
class NamesConnector final : public Connector {
public:
    explicit NamesConnector(SoftDevice& device)
        : device_(device), table_(NameTable::of_fabric(device.fabric_name())), inbox_(std::make_shared<Inbox>()) {}
    ~NamesConnector() override;

    using Connector::listen;
    [[nodiscard]] ListenerId listen(const std::string& address, PrivateDataForm form) override;
    [[nodiscard]] std::string address_of(ListenerId listener) const override;
    void stop_listening(ListenerId listener) noexcept override;
    [[nodiscard]] ConnectionId connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                       std::span<const std::byte> private_data) override;
    void accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                std::span<const std::byte> private_data) override;
    void reject(ConnectionId request, std::span<const std::byte> private_data) override;
    void disconnect(ConnectionId connection) override;
    void forget(ConnectionId connection) noexcept override;
    [[nodiscard]] int fd() const noexcept override { return inbox_->fd(); }
    [[nodiscard]] std::optional<ConnectEvent> next_event() override;

private:
    static constexpr const char* kGivenUp = "the peer gave the connection up";

    enum class State {
        requested,  ///< active side: the request was sent
        asked,      ///< passive side: the request was offered to the caller
        withdrawn,  ///< passive side: the active side has given up the request
        accepted,   ///< passive side: the reply was sent
        established,
        ended,  ///< the connection's last event is queued
    };
    using Notice = std::list<ConnectEvent>;
    struct Connection {
        // Allocated in advance: two messages (one for the handshake, one for the end) and three events (the request,
        // its outcome, and the end of the connection).
        Letter letters = Letter(2);
        Notice notices = Notice(3);
        State state{};
        Endpoint peer;  ///< the other side; on the active side, before the reply: the listener's inbox
        std::string name;
        PrivateDataForm form = PrivateDataForm::framed;
        Offer peer_offer;  ///< passive side: the offer in the request
        ConnectingQp qp;   ///< active side, before the reply: this side's QP
        PathAttributes path;
        std::uint32_t psn = 0;
    };

    /// Returns the bytes as the peer gets them: framed or not, and padded with zeros as by rdma_cm (H14).
    [[nodiscard]] static std::vector<std::byte> private_data_on_wire(PrivateDataForm form,
                                                                     std::span<const std::byte> private_data,
                                                                     std::size_t framed_max, const FlowBlock& flow);
    void handle(Letter letter);
    void on_request(Letter letter);
    void on_withdrawal(const Endpoint& from);
    void on_reply(ConnectionId id, Connection& connection, Message& message);
    /// Moves the QP to RTR and RTS with the attributes that both sides agreed on.
    void make_ready(Connection& connection, ConnectingQp& qp, const PathAttributes& path, const Offer& peer);
    [[nodiscard]] Offer offer_of(const ConnectingQp& qp, const PathAttributes& path, std::uint32_t psn);
    [[nodiscard]] std::uint32_t next_psn() noexcept;
    void queue(Connection& connection, ConnectEvent event) noexcept;
    void fail(ConnectionId id, Connection& connection, int error, std::string text,
              std::vector<std::byte> private_data = {}) noexcept;
    [[nodiscard]] Connection& find(ConnectionId id, State state, std::string_view what);
    void tell(Connection& connection, ConnectionId own, Message message) noexcept;
    void tell(const Endpoint& peer, ConnectionId own, Letter letter, Message message) noexcept;
    [[nodiscard]] static Message refusal(int error, std::string text) noexcept;
    void leave(ConnectionId id, Connection& connection, std::string why) noexcept;

    SoftDevice& device_;
    std::shared_ptr<NameTable> table_;
    std::shared_ptr<Inbox> inbox_;
    struct Listener {
        std::string name;
        PrivateDataForm form;
    };
    std::map<ListenerId, Listener> listeners_;
    std::map<ConnectionId, Connection> connections_;
    Notice events_;
    std::uint64_t last_id_ = 0;
    std::uint32_t last_psn_ = 0;
};

}  // namespace pollcore
