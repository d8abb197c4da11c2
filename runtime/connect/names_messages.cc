// Handles the messages from the other side.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "connect/handshake.hpp"
#include "connect/names_connector.hpp"
#include "connect/names_sentences.hpp"
#include "connect/transitions.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

/// Leaves only the user's bytes in `bytes`, and the padding in the raw form. Allocates nothing. After a fault, leaves
/// no bytes.
[[nodiscard]] PrivateDataFault unpack(PrivateDataForm form, std::vector<std::byte>& bytes) noexcept {
    const DecodedPrivateData data = private_data_that_came(form, bytes);
    if (data.payload.empty()) {
        bytes.clear();
        return data.fault;
    }
    const std::ptrdiff_t begin = data.payload.data() - bytes.data();
    const std::size_t size = data.payload.size();
    bytes.erase(bytes.begin(), bytes.begin() + begin);
    bytes.resize(size);
    return PrivateDataFault::none;
}

}  // namespace

std::optional<ConnectEvent> NamesConnector::next_event() {
    while (events_.empty()) {
        if (Letter letter = inbox_->take(); !letter.empty()) {
            handle(std::move(letter));
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

void NamesConnector::handle(Letter letter) {
    Message& message = letter.front();
    if (message.kind == Message::Kind::request)
        return on_request(std::move(letter));
    if (message.kind == Message::Kind::withdrawn)
        return on_withdrawal(message.from);
    const auto found = connections_.find(message.to);
    if (found == connections_.end()) {
        // This side has forgotten the connection. If the peer has just accepted it, the peer learns only now that this
        // side has given up.
        if (message.kind != Message::Kind::reply)
            return;
        const Endpoint from = std::move(message.from);
        const ConnectionId own = message.to;
        return tell(from, own, std::move(letter), refusal(ECONNRESET, said([] { return std::string(kGivenUp); })));
    }
    const ConnectionId id = found->first;
    Connection& connection = found->second;
    switch (message.kind) {
        case Message::Kind::request:
        case Message::Kind::withdrawn: break;
        case Message::Kind::reply:
            if (connection.state == State::requested)
                on_reply(id, connection, message);
            break;
        case Message::Kind::ready:
            if (connection.state != State::accepted)
                break;
            connection.state = State::established;
            queue(connection,
                  {.kind = ConnectEvent::Kind::established, .connection = id, .private_data = {}, .text = {}});
            break;
        case Message::Kind::refused:
            if (connection.state == State::requested || connection.state == State::accepted) {
                (void)unpack(connection.form, message.private_data);
                fail(id, connection, message.error, said([&] {
                         return fmt::format("the connection to \"{}\" was refused: {}", connection.name, message.text);
                     }),
                     std::move(message.private_data));
            }
            break;
        case Message::Kind::disconnect:
            if (connection.state != State::established)
                break;
            connection.state = State::ended;
            queue(connection,
                  {.kind = ConnectEvent::Kind::disconnected, .connection = id, .private_data = {}, .text = {}});
            break;
    }
}

// If a request cannot be offered, its own letter is used for the answer, so that the answer needs no memory.
void NamesConnector::on_request(Letter letter) {
    Message& message = letter.front();
    const auto listener = listeners_.find(message.listener);
    const ConnectionId id = ++last_id_;
    if (listener == listeners_.end()) {
        const Endpoint from = std::move(message.from);
        return tell(from, id, std::move(letter),
                    refusal(ECONNREFUSED, said([] { return std::string("the listener has stopped"); })));
    }
    auto placed = connections_.end();
    try {
        placed = connections_.try_emplace(id).first;
        placed->second.name = listener->second.name;
    } catch (const std::bad_alloc&) {
        if (placed != connections_.end())
            connections_.erase(placed);
        const Endpoint from = std::move(message.from);
        return tell(from, id, std::move(letter),
                    refusal(ENOMEM, said([] { return std::string("the listener has no memory for it"); })));
    }
    Connection& connection = placed->second;
    connection.form = listener->second.form;
    if (const PrivateDataFault fault = unpack(connection.form, message.private_data); fault != PrivateDataFault::none) {
        connections_.erase(placed);
        const Endpoint from = std::move(message.from);
        return tell(from, id, std::move(letter), refusal(ECONNREFUSED, said([&] {
                                                             return fmt::format("of its private data, {}",
                                                                                private_data_fault_text(fault));
                                                         })));
    }
    connection.state = State::asked;
    connection.peer = std::move(message.from);
    connection.peer_offer = message.offer;
    queue(connection, {.kind = ConnectEvent::Kind::request,
                       .connection = id,
                       .listener = message.listener,
                       .private_data = std::move(message.private_data),
                       .text = std::move(message.text),
                       .flow = message.offer.qp.flow,
                       .max_dest_rd_atomic = message.offer.max_dest_rd_atomic});
}

// The sender has given up its request, so nobody waits for an answer.
void NamesConnector::on_withdrawal(const Endpoint& from) {
    const auto found = std::find_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
        return entry.second.peer.inbox == from.inbox && entry.second.peer.connection == from.connection;
    });
    if (found == connections_.end())
        return;
    auto& [id, connection] = *found;
    if (connection.state == State::asked) {
        connection.state = State::withdrawn;
        queue(connection, {.kind = ConnectEvent::Kind::withdrawn, .connection = id, .private_data = {}, .text = {}});
    } else if (connection.state == State::accepted) {
        fail(id, connection, ECONNRESET, said([] { return std::string(kGivenUp); }));
    }
}

void NamesConnector::on_reply(ConnectionId id, Connection& connection, Message& message) {
    connection.peer = std::move(message.from);
    try {
        if (const PrivateDataFault fault = unpack(connection.form, message.private_data);
            fault != PrivateDataFault::none) {
            throw Error(EPROTO, fmt::format("of the private data of the answer, {}", private_data_fault_text(fault)));
        }
        make_ready(connection, connection.qp, connection.path, message.offer);
    } catch (const std::exception& error) {
        tell(connection, id, refusal(ECONNREFUSED, not_ready(error)));
        fail(id, connection, code_of(error), said([&] { return std::string(error.what()); }));
        return;
    }
    connection.qp = {};
    connection.state = State::established;
    Message ready;
    ready.kind = Message::Kind::ready;
    tell(connection, id, std::move(ready));
    queue(connection, {.kind = ConnectEvent::Kind::established,
                       .connection = id,
                       .private_data = std::move(message.private_data),
                       .text = {},
                       .flow = message.offer.qp.flow});
}

void NamesConnector::make_ready(Connection& connection, ConnectingQp& qp, const PathAttributes& path,
                                const Offer& peer) {
    if (peer.qp.type != qp.type) {
        throw Error(
            std::errc::wrong_protocol_type,
            fmt::format("queue pair {} and its peer, queue pair {}, are not of one type", qp.called(), peer.qp.qp_num));
    }
    // A side may have as many reads and atomics in flight as the other side serves.
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

/// Returns the next PSN. PSNs are far from each other, so that packets of an earlier connection do not fit a later one.
/// The sequence is the same in each run, so that a simulation can be repeated.
std::uint32_t NamesConnector::next_psn() noexcept {
    last_psn_ = (last_psn_ + 0x9e3779) & 0xffffff;
    return last_psn_;
}

// ---- small parts ----

void NamesConnector::queue(Connection& connection, ConnectEvent event) noexcept {
    connection.notices.front() = std::move(event);
    events_.splice(events_.end(), connection.notices, connection.notices.begin());
    inbox_->wake();
}

void NamesConnector::fail(ConnectionId id, Connection& connection, int error, std::string text,
                          std::vector<std::byte> private_data) noexcept {
    connection.state = State::ended;
    connection.qp = {};
    queue(connection, {.kind = ConnectEvent::Kind::failed,
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

void NamesConnector::tell(Connection& connection, ConnectionId own, Message message) noexcept {
    Letter letter;
    letter.splice(letter.begin(), connection.letters, connection.letters.begin());
    tell(connection.peer, own, std::move(letter), std::move(message));
}

/// Sends to the other side. If the other side does not exist any more, this side sends itself a refusal in place of a
/// reply, and a disconnect in place of `ready`. Any other message is dropped.
void NamesConnector::tell(const Endpoint& peer, ConnectionId own, Letter letter, Message message) noexcept {
    const Message::Kind kind = message.kind;
    message.to = peer.connection;
    message.from = {inbox_, own};
    letter.front() = std::move(message);
    if (peer.inbox != nullptr && peer.inbox->put(letter) == Inbox::Delivery::delivered)
        return;
    Message answer;
    answer.to = own;
    if (kind == Message::Kind::reply) {
        answer.kind = Message::Kind::refused;
        answer.error = ECONNRESET;
        answer.text = said([] { return std::string("the peer is gone"); });
    } else if (kind == Message::Kind::ready) {
        answer.kind = Message::Kind::disconnect;
    } else {
        return;
    }
    letter.front() = std::move(answer);
    (void)inbox_->put(letter);  // cannot fail, because this side's inbox is open
}

Message NamesConnector::refusal(int error, std::string text) noexcept {
    Message message;
    message.kind = Message::Kind::refused;
    message.error = error;
    message.text = std::move(text);
    return message;
}

/// Tells the other side that this side of the connection ends. Tells nothing if the connection was withdrawn or has
/// ended.
void NamesConnector::leave(ConnectionId id, Connection& connection, std::string why) noexcept {
    Message message;
    switch (connection.state) {
        case State::asked: return tell(connection, id, refusal(ECONNREFUSED, std::move(why)));
        case State::established:
        case State::accepted:
            message.kind = Message::Kind::disconnect;
            break;  // the connection is established at the peer, or soon may be
        case State::requested: message.kind = Message::Kind::withdrawn; break;
        case State::withdrawn:
        case State::ended: return;
    }
    tell(connection, id, std::move(message));
}

}  // namespace pollcore
