// Listening, and the caller's side of the handshake.
#include "connect/names_connector.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/undo.hpp"
#include "connect/handshake.hpp"
#include "connect/names_sentences.hpp"
#include "pollcore/error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

std::vector<std::byte> NamesConnector::private_data_on_wire(PrivateDataForm form,
                                                            std::span<const std::byte> private_data,
                                                            std::size_t framed_max, const FlowBlock& flow) {
    std::vector<std::byte> bytes = private_data_to_send(form, private_data, framed_max, flow);
    bytes.resize(kPrivateDataHeader + framed_max);
    return bytes;
}

NamesConnector::~NamesConnector() {
    for (const auto& [id, listener] : listeners_)
        table_->remove(listener.name);
    const auto gone = [this] {
        return said([this] { return fmt::format("the peer's connector on {} was closed", device_.describe()); });
    };
    for (auto& [id, connection] : connections_)
        leave(id, connection, gone());
    std::list<Message> unread = inbox_->close_down();
    while (!unread.empty()) {
        Letter letter;
        letter.splice(letter.begin(), unread, unread.begin());
        if (letter.front().kind != Message::Kind::request)
            continue;
        const Endpoint from = std::move(letter.front().from);
        tell(from, 0, std::move(letter), refusal(ECONNREFUSED, gone()));
    }
}

// ---- listening ----

ListenerId NamesConnector::listen(const std::string& address, PrivateDataForm form) {
    const bool word = !address.empty() && std::none_of(address.begin(), address.end(),
                                                       [](unsigned char c) { return c <= ' ' || c == 0x7f; });
    if (!word) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("cannot listen on \"{}\" on {}: a name is one word, with no spaces", address,
                                device_.describe()));
    }
    const ListenerId id = ++last_id_;
    const auto placed = listeners_.emplace(id, Listener{address, form}).first;
    Undo take_back([&]() noexcept { listeners_.erase(placed); });
    if (!table_->add(address, {inbox_, id})) {
        throw Error(std::errc::address_in_use,
                    fmt::format("cannot listen on \"{}\" on {}: somebody listens there already; stop that listener or "
                                "choose another name",
                                address, device_.describe()));
    }
    take_back.keep();
    return id;
}

std::string NamesConnector::address_of(ListenerId listener) const {
    const auto found = listeners_.find(listener);
    if (found == listeners_.end()) {
        throw Error(std::errc::invalid_argument,
                    fmt::format("listener {} on {} is not there", listener, device_.describe()));
    }
    return found->second.name;
}

void NamesConnector::stop_listening(ListenerId listener) noexcept {
    if (const auto found = listeners_.find(listener); found != listeners_.end()) {
        table_->remove(found->second.name);
        listeners_.erase(found);
    }
}

// ---- the user's side of the handshake ----

ConnectionId NamesConnector::connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                     std::span<const std::byte> private_data) {
    std::vector<std::byte> on_wire = private_data_on_wire(qp.form, private_data, kRequestPrivateDataMax, qp.flow);
    const ConnectionId id = ++last_id_;
    const auto placed = connections_.try_emplace(id).first;
    Undo take_back([&]() noexcept { connections_.erase(placed); });
    Connection& connection = placed->second;
    connection.state = State::requested;
    connection.name = address;
    connection.form = qp.form;
    connection.path = path;
    connection.psn = next_psn();
    Letter letter(1);
    Message& request = letter.front();
    request.kind = Message::Kind::request;
    request.from = {inbox_, id};
    request.offer = offer_of(qp, path, connection.psn);
    request.private_data = std::move(on_wire);
    request.text = fmt::format("queue pair {} on {}", qp.called(), device_.describe());
    const auto listener = table_->find(address);
    take_back.keep();
    connection.qp = std::move(qp);
    auto delivery = Inbox::Delivery::gone;
    if (listener) {
        request.listener = listener->id;
        connection.peer = {listener->inbox, 0};
        delivery = listener->inbox->put(letter);
    }
    if (delivery == Inbox::Delivery::gone) {
        fail(id, connection, ECONNREFUSED, said([&] {
                 return fmt::format(
                     "cannot connect to \"{}\": nobody listens there on software fabric \"{}\"; start the listener "
                     "first",
                     address, device_.fabric_name());
             }));
    } else if (delivery == Inbox::Delivery::full) {
        fail(id, connection, ECONNREFUSED, said([&] {
                 return fmt::format("cannot connect to \"{}\": {} requests wait there already; try again", address,
                                    Inbox::kRequestsMax);
             }));
    }
    return id;
}

void NamesConnector::accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                            std::span<const std::byte> private_data) {
    if (const auto known = connections_.find(request);
        known != connections_.end() && known->second.state == State::withdrawn) {
        return fail(request, known->second, ECONNRESET, said([] { return std::string(kGivenUp); }));
    }
    Connection& connection = find(request, State::asked, "accept");
    std::vector<std::byte> on_wire = private_data_on_wire(connection.form, private_data, kReplyPrivateDataMax, qp.flow);
    connection.psn = next_psn();
    Message reply;
    reply.kind = Message::Kind::reply;
    reply.offer = offer_of(qp, path, connection.psn);
    reply.private_data = std::move(on_wire);
    try {
        make_ready(connection, qp, path, connection.peer_offer);
    } catch (const std::exception& error) {
        tell(connection, request, refusal(ECONNREFUSED, not_ready(error)));
        fail(request, connection, code_of(error), said([&] { return std::string(error.what()); }));
        return;
    }
    connection.state = State::accepted;
    tell(connection, request, std::move(reply));
}

void NamesConnector::reject(ConnectionId request, std::span<const std::byte> private_data) {
    if (const auto known = connections_.find(request);
        known != connections_.end() && known->second.state == State::withdrawn) {
        connections_.erase(known);
        return;
    }
    Connection& connection = find(request, State::asked, "reject");
    std::vector<std::byte> on_wire = private_data_on_wire(connection.form, private_data, kRejectPrivateDataMax, {});
    Message answer =
        refusal(ECONNREFUSED, fmt::format("the listener on \"{}\" rejected the connection", connection.name));
    answer.private_data = std::move(on_wire);
    tell(connection, request, std::move(answer));
    connections_.erase(request);
}

void NamesConnector::disconnect(ConnectionId id) {
    const auto found = connections_.find(id);
    // The peer may have left a moment ago. Then the event `disconnected` was already made.
    if (found == connections_.end() || found->second.state == State::ended)
        return;
    Connection& connection = find(id, State::established, "disconnect");
    leave(id, connection, {});
    connection.state = State::ended;
    queue(connection, {.kind = ConnectEvent::Kind::disconnected, .connection = id, .private_data = {}, .text = {}});
}

void NamesConnector::forget(ConnectionId id) noexcept {
    const auto found = connections_.find(id);
    if (found != connections_.end()) {
        leave(id, found->second, said([] { return std::string(kGivenUp); }));
        connections_.erase(found);
    }
    std::erase_if(events_, [id](const ConnectEvent& event) { return event.connection == id; });
}

}  // namespace pollcore
