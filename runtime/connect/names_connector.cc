// Listening, and the user's side of the handshake.
#include "connect/names_connector.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "pollcore/error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {
namespace {

void require_fits(std::span<const std::byte> data, std::size_t most) {
    if (data.size() <= most)
        return;
    throw Error(
        std::errc::message_size,
        fmt::format("private data of {} bytes does not fit: at most {} go along here", data.size(), most));
}

}  // namespace

NamesConnector::~NamesConnector() {
    for (const auto& [id, name] : listeners_)
        table_->remove(name);
    const auto gone = fmt::format("the peer's connector on {} was closed", device_.describe());
    for (const auto& [id, connection] : connections_)
        leave(id, connection, gone);
    for (const Message& message : inbox_->close_down()) {
        if (message.kind != Message::Kind::request)
            continue;
        Connection nobody;
        nobody.peer = message.from;
        refuse(nobody, 0, ECONNREFUSED, gone);
    }
}

// ---- listening ----

ListenerId NamesConnector::listen(const std::string& address) {
    const bool word = !address.empty() && std::none_of(address.begin(), address.end(),
                                                       [](unsigned char c) { return c <= ' ' || c == 0x7f; });
    if (!word) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot listen on \"{}\" on {}: a name is one word, with no spaces", address,
                                device_.describe()));
    }
    const ListenerId id = ++last_id_;
    if (!table_->add(address, {inbox_, id})) {
        throw Error(
            std::errc::address_in_use,
            fmt::format(
                "cannot listen on \"{}\" on {}: somebody listens there already; stop that listener or "
                "choose another name",
                address, device_.describe()));
    }
    listeners_.emplace(id, address);
    return id;
}

std::string NamesConnector::address_of(ListenerId listener) const {
    const auto found = listeners_.find(listener);
    if (found == listeners_.end()) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("listener {} on {} is not there", listener, device_.describe()));
    }
    return found->second;
}

void NamesConnector::stop_listening(ListenerId listener) {
    table_->remove(address_of(listener));
    listeners_.erase(listener);
}

// ---- the user's side of the handshake ----

ConnectionId NamesConnector::connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                     std::span<const std::byte> private_data) {
    require_fits(private_data, kRequestPrivateDataMax - (qp.flow.kind != FlowControl::off ? kPrivateDataFlow : 0));
    const ConnectionId id = ++last_id_;
    Connection& connection = connections_[id];
    connection.state = State::requested;
    connection.name = address;
    connection.path = path;
    connection.psn = next_psn();
    Message request;
    request.kind = Message::Kind::request;
    request.from = {inbox_, id};
    request.offer = offer_of(qp, path, connection.psn);
    request.private_data.assign(private_data.begin(), private_data.end());
    request.text = fmt::format("QP {} on {}", qp.qp_num, device_.describe());
    connection.qp = std::move(qp);
    auto delivery = Inbox::Delivery::gone;
    if (const auto listener = table_->find(address)) {
        request.listener = listener->id;
        connection.peer = {listener->inbox, 0};
        delivery = listener->inbox->put(std::move(request));
    }
    if (delivery == Inbox::Delivery::gone) {
        fail(id, connection, ECONNREFUSED,
             fmt::format("cannot connect to \"{}\": nobody listens there on software fabric \"{}\"; start the listener first",
                         address, device_.fabric_name()));
    } else if (delivery == Inbox::Delivery::full) {
        fail(id, connection, ECONNREFUSED,
             fmt::format("cannot connect to \"{}\": {} requests wait there already; try again", address, Inbox::kRequestsMax));
    }
    return id;
}

void NamesConnector::accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                            std::span<const std::byte> private_data) {
    require_fits(private_data, kReplyPrivateDataMax - (qp.flow.kind != FlowControl::off ? kPrivateDataFlow : 0));
    if (const auto known = connections_.find(request); known != connections_.end() && known->second.state == State::withdrawn) {
        return fail(request, known->second, ECONNRESET, kGivenUp);
    }
    Connection& connection = find(request, State::asked, "accept");
    try {
        connection.psn = next_psn();
        make_ready(connection, qp, path, connection.peer_offer);
    } catch (const Error& error) {
        refuse(connection, request, ECONNREFUSED,
               fmt::format("the peer could not ready its QP: {}", error.what()));
        fail(request, connection, error.code().value(), error.what());
        return;
    }
    Message reply;
    reply.kind = Message::Kind::reply;
    reply.offer = offer_of(qp, path, connection.psn);
    reply.private_data.assign(private_data.begin(), private_data.end());
    connection.state = State::accepted;
    tell(connection, request, std::move(reply));
}

void NamesConnector::reject(ConnectionId request, std::span<const std::byte> private_data) {
    require_fits(private_data, kReplyPrivateDataMax);
    if (const auto known = connections_.find(request); known != connections_.end() && known->second.state == State::withdrawn) {
        connections_.erase(known);
        return;
    }
    Connection& connection = find(request, State::asked, "reject");
    refuse(connection, request, ECONNREFUSED,
           fmt::format("the listener on \"{}\" rejected the connection", connection.name), private_data);
    connections_.erase(request);
}

void NamesConnector::disconnect(ConnectionId id) {
    const auto found = connections_.find(id);
    // The peer may have left a moment ago: its `disconnected` is the answer.
    if (found == connections_.end() || found->second.state == State::ended)
        return;
    Connection& connection = find(id, State::established, "disconnect");
    leave(id, connection, {});
    connection.state = State::ended;
    queue({.kind = ConnectEvent::Kind::disconnected, .connection = id, .private_data = {}, .text = {}});
}

void NamesConnector::forget(ConnectionId id) noexcept {
    const auto found = connections_.find(id);
    if (found != connections_.end()) {
        leave(id, found->second, kGivenUp);
        connections_.erase(found);
    }
    std::erase_if(events_, [id](const ConnectEvent& event) { return event.connection == id; });
}

}  // namespace pollcore
