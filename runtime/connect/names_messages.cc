// The messages of the other side, and what follows from them.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "connect/names_connector.hpp"
#include "connect/transitions.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
std::optional<ConnectEvent> NamesConnector::next_event() {
    while (events_.empty()) {
        if (auto message = inbox_->take()) {
            handle(std::move(*message));
        } else if (inbox_->rest()) {
            return std::nullopt;
        }
    }
    ConnectEvent event = std::move(events_.front());
    events_.pop_front();
    const auto found = connections_.find(event.connection);
    if (found != connections_.end() && found->second.state == State::ended)
        connections_.erase(found);
    return event;
}

void NamesConnector::handle(Message message) {
    if (message.kind == Message::Kind::request)
        return on_request(std::move(message));
    if (message.kind == Message::Kind::withdrawn)
        return on_withdrawal(message.from);
    const auto found = connections_.find(message.to);
    if (found == connections_.end()) {
        // Forgotten here. A peer that this side never heard of learns of it only now.
        if (message.kind != Message::Kind::reply)
            return;
        Connection forgotten;
        forgotten.peer = std::move(message.from);
        return refuse(forgotten, message.to, ECONNRESET, kGivenUp);
    }
    auto& [id, connection] = *found;
    switch (message.kind) {
        case Message::Kind::request:
        case Message::Kind::withdrawn: break;
        case Message::Kind::reply:
            if (connection.state == State::requested)
                on_reply(id, connection, std::move(message));
            break;
        case Message::Kind::ready:
            if (connection.state != State::accepted)
                break;
            connection.state = State::established;
            queue(
                {.kind = ConnectEvent::Kind::established, .connection = id, .private_data = {}, .text = {}});
            break;
        case Message::Kind::refused:
            if (connection.state == State::requested || connection.state == State::accepted) {
                fail(id, connection, message.error,
                     fmt::format("the connection to \"{}\" was refused: {}", connection.name, message.text),
                     std::move(message.private_data));
            }
            break;
        case Message::Kind::disconnect:
            if (connection.state != State::established)
                break;
            connection.state = State::ended;
            queue(
                {.kind = ConnectEvent::Kind::disconnected, .connection = id, .private_data = {}, .text = {}});
            break;
    }
}

void NamesConnector::on_request(Message message) {
    const auto listener = listeners_.find(message.listener);
    const ConnectionId id = ++last_id_;
    Connection connection;
    connection.state = State::asked;
    connection.peer = std::move(message.from);
    if (listener == listeners_.end()) {
        return refuse(connection, id, ECONNREFUSED, "the listener has stopped");
    }
    connection.name = listener->second;
    connection.peer_offer = message.offer;
    connections_.emplace(id, std::move(connection));
    queue({.kind = ConnectEvent::Kind::request,
           .connection = id,
           .listener = message.listener,
           .private_data = std::move(message.private_data),
           .text = std::move(message.text),
           .flow = message.offer.qp.flow});
}

// Whose answer would find nobody.
void NamesConnector::on_withdrawal(const Endpoint& from) {
    const auto found = std::find_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
        return entry.second.peer.inbox == from.inbox && entry.second.peer.connection == from.connection;
    });
    if (found == connections_.end())
        return;
    auto& [id, connection] = *found;
    if (connection.state == State::asked) {
        connection.state = State::withdrawn;
        queue({.kind = ConnectEvent::Kind::withdrawn, .connection = id, .private_data = {}, .text = {}});
    } else if (connection.state == State::accepted) {
        fail(id, connection, ECONNRESET, kGivenUp);
    }
}

void NamesConnector::on_reply(ConnectionId id, Connection& connection, Message message) {
    connection.peer = std::move(message.from);
    try {
        make_ready(connection, connection.qp, connection.path, message.offer);
    } catch (const Error& error) {
        refuse(connection, id, ECONNREFUSED,
               fmt::format("the peer could not ready its QP: {}", error.what()));
        fail(id, connection, error.code().value(), error.what());
        return;
    }
    connection.qp = {};
    connection.state = State::established;
    Message ready;
    ready.kind = Message::Kind::ready;
    tell(connection, id, std::move(ready));
    queue({.kind = ConnectEvent::Kind::established,
           .connection = id,
           .private_data = std::move(message.private_data),
           .text = {},
           .flow = message.offer.qp.flow});
}

void NamesConnector::make_ready(Connection& connection, ConnectingQp& qp, const PathAttributes& path,
                                const Offer& peer) {
    if (peer.qp.type != qp.type) {
        throw Error(std::errc::wrong_protocol_type,
                    fmt::format("QP {} and its peer, QP {}, are not of one type", qp.qp_num, peer.qp.qp_num));
    }
    // What one side may have in flight is what the other serves.
    PathAttributes agreed = path;
    const auto most = static_cast<std::uint8_t>(std::min<std::uint32_t>(device_.limits().rd_atomic_max, 255));
    agreed.max_rd_atomic = std::min({path.max_rd_atomic, peer.max_dest_rd_atomic, most});
    agreed.max_dest_rd_atomic = std::min(path.max_dest_rd_atomic, most);
    auto rtr = to_rtr(peer.qp, agreed, device_.port(), 0, device_.query_port().active_mtu, qp.type);
    qp.modify(rtr.attr, rtr.mask);
    auto rts = to_rts(connection.psn, agreed, qp.type);
    qp.modify(rts.attr, rts.mask);
}

Offer NamesConnector::offer_of(const ConnectingQp& qp, const PathAttributes& path, std::uint32_t psn) {
    const ibv_mtu active = device_.query_port().active_mtu;
    const auto most = static_cast<std::uint8_t>(std::min<std::uint32_t>(device_.limits().rd_atomic_max, 255));
    Offer offer;
    std::memcpy(offer.qp.gid.data(), device_.gids().front().gid.raw, offer.qp.gid.size());
    offer.qp.qp_num = qp.qp_num;
    offer.qp.psn = psn;
    offer.qp.type = qp.type;
    offer.qp.flow = qp.flow;
    offer.qp.mtu = mtu_to_bytes(std::min(active, mtu_from_bytes(path.mtu, active)));
    offer.max_rd_atomic = std::min(path.max_rd_atomic, most);
    offer.max_dest_rd_atomic = std::min(path.max_dest_rd_atomic, most);
    return offer;
}

/// Far from each other, so that packets of an earlier connection do not fit a later one; and the same in each
/// run, so that a simulation can be repeated.
std::uint32_t NamesConnector::next_psn() noexcept {
    last_psn_ = (last_psn_ + 0x9e3779) & 0xffffff;
    return last_psn_;
}

// ---- small parts ----

void NamesConnector::queue(ConnectEvent event) {
    events_.push_back(std::move(event));
    inbox_->wake();
}

void NamesConnector::fail(ConnectionId id, Connection& connection, int error, std::string text,
                          std::vector<std::byte> private_data) {
    connection.state = State::ended;
    connection.qp = {};
    queue({.kind = ConnectEvent::Kind::failed,
           .connection = id,
           .private_data = std::move(private_data),
           .error = error,
           .text = std::move(text)});
}

NamesConnector::Connection& NamesConnector::find(ConnectionId id, State state, std::string_view what) {
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second.state != state) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot {} connection {} on {}: it is {}", what, id, device_.describe(),
                                found == connections_.end() ? "not there" : "not in a state for that"));
    }
    return found->second;
}

/// To the other side, if there still is one. Answers itself with a refusal or a disconnect if there is not.
void NamesConnector::tell(const Connection& connection, ConnectionId own, Message message) {
    const Message::Kind kind = message.kind;
    message.to = connection.peer.connection;
    message.from = {inbox_, own};
    if (connection.peer.inbox != nullptr && connection.peer.inbox->put(std::move(message)) == Inbox::Delivery::delivered)
        return;
    Message answer;
    answer.to = own;
    if (kind == Message::Kind::reply) {
        answer.kind = Message::Kind::refused;
        answer.error = ECONNRESET;
        answer.text = "the peer is gone";
    } else if (kind == Message::Kind::ready) {
        answer.kind = Message::Kind::disconnect;
    } else {
        return;
    }
    (void)inbox_->put(std::move(answer));  // its own, which is open
}

void NamesConnector::refuse(const Connection& connection, ConnectionId own, int error, std::string text,
                            std::span<const std::byte> private_data) {
    Message message;
    message.kind = Message::Kind::refused;
    message.error = error;
    message.text = std::move(text);
    message.private_data.assign(private_data.begin(), private_data.end());
    tell(connection, own, std::move(message));
}

/// Tells the other side that this one is no more, whatever the state.
void NamesConnector::leave(ConnectionId id, const Connection& connection, const std::string& why) {
    switch (connection.state) {
        case State::asked: refuse(connection, id, ECONNREFUSED, why); break;
        case State::established:
        case State::accepted: {
            // An accepted peer may count itself as established, or still be about to.
            Message message;
            message.kind = Message::Kind::disconnect;
            tell(connection, id, std::move(message));
            break;
        }
        case State::requested: {
            Message message;
            message.kind = Message::Kind::withdrawn;
            tell(connection, id, std::move(message));
            break;
        }
        case State::withdrawn:
        case State::ended: break;
    }
}

}  // namespace pollcore
