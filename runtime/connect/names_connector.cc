#include "connect/names_connector.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "connect/transitions.hpp"
#include "device/soft/soft_device.hpp"
#include "pollcore/error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

namespace {

class Inbox;

/// One side of a connection, as the other side addresses it.
struct Endpoint {
    std::shared_ptr<Inbox> inbox;
    ConnectionId connection = 0;
};

/// What one side tells the other about its QP and its limits.
struct Offer {
    QpInfo qp;
    std::uint8_t max_rd_atomic = 0;
    std::uint8_t max_dest_rd_atomic = 0;
};

struct Message {
    enum class Kind {
        request,  ///< to a listener
        reply,    ///< accepted: the passive QP is in RTS
        ready,    ///< the active QP is in RTS too
        refused,  ///< rejected, or the other side failed or left before it was ready
        disconnect,
    };
    Kind kind{};
    ConnectionId to = 0;      ///< request: 0
    ListenerId listener = 0;  ///< request
    Endpoint from;
    Offer offer;  ///< request, reply
    std::vector<std::byte> private_data;
    int error = 0;     ///< refused
    std::string text;  ///< request: the peer; refused: the sentence
};

/// Where a connector's messages arrive; its eventfd is readable while the connector has something to do.
class Inbox {
public:
    Inbox() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        if (fd_ < 0) {
            throw Error(
                errno,
                "cannot make an eventfd for connections by name; raise the limit of open files (ulimit -n)");
        }
    }
    Inbox(const Inbox&) = delete;
    Inbox& operator=(const Inbox&) = delete;
    ~Inbox() { close(fd_); }

    [[nodiscard]] int fd() const noexcept { return fd_; }

    /// False when the connector is gone.
    bool put(Message message) {
        const std::lock_guard guard(mutex_);
        if (closed_)
            return false;
        messages_.push_back(std::move(message));
        signal();
        return true;
    }
    [[nodiscard]] std::optional<Message> take() {
        const std::lock_guard guard(mutex_);
        if (messages_.empty())
            return std::nullopt;
        Message message = std::move(messages_.front());
        messages_.pop_front();
        return message;
    }
    /// Something of the connector's own waits to be taken.
    void wake() {
        const std::lock_guard guard(mutex_);
        signal();
    }
    /// The connector found nothing to do; true unless a message came meanwhile.
    bool rest() {
        const std::lock_guard guard(mutex_);
        if (!messages_.empty())
            return false;
        eventfd_t count = 0;
        (void)eventfd_read(fd_, &count);
        return true;
    }
    /// No more messages; gives those that were not taken.
    [[nodiscard]] std::deque<Message> close_down() {
        const std::lock_guard guard(mutex_);
        closed_ = true;
        return std::exchange(messages_, {});
    }

private:
    // The counter is read back to 0 whenever the connector rests, so it cannot be full.
    void signal() { (void)eventfd_write(fd_, 1); }

    std::mutex mutex_;
    std::deque<Message> messages_;
    bool closed_ = false;
    const int fd_;
};

/// The names of one fabric.
class NameTable {
public:
    struct Listener {
        std::shared_ptr<Inbox> inbox;
        ListenerId id = 0;
    };

    [[nodiscard]] static std::shared_ptr<NameTable> of_fabric(const std::string& fabric) {
        static std::mutex mutex;
        static std::map<std::string, std::weak_ptr<NameTable>> tables;
        const std::lock_guard guard(mutex);
        std::weak_ptr<NameTable>& known = tables[fabric];
        if (auto table = known.lock())
            return table;
        auto table = std::make_shared<NameTable>();
        known = table;
        return table;
    }

    [[nodiscard]] bool add(const std::string& name, Listener listener) {
        const std::lock_guard guard(mutex_);
        return listeners_.emplace(name, std::move(listener)).second;
    }
    void remove(const std::string& name) {
        const std::lock_guard guard(mutex_);
        listeners_.erase(name);
    }
    [[nodiscard]] std::optional<Listener> find(const std::string& name) {
        const std::lock_guard guard(mutex_);
        const auto found = listeners_.find(name);
        if (found == listeners_.end())
            return std::nullopt;
        return found->second;
    }

private:
    std::mutex mutex_;
    std::map<std::string, Listener> listeners_;
};

class NamesConnector final : public Connector {
public:
    explicit NamesConnector(SoftDevice& device)
        : device_(device),
          table_(NameTable::of_fabric(device.fabric_name())),
          inbox_(std::make_shared<Inbox>()) {}
    ~NamesConnector() override;

    [[nodiscard]] ListenerId listen(const std::string& address) override;
    [[nodiscard]] std::string address_of(ListenerId listener) const override;
    void stop_listening(ListenerId listener) override;
    [[nodiscard]] ConnectionId connect(const std::string& address, ConnectingQp qp,
                                       const PathAttributes& path,
                                       std::span<const std::byte> private_data) override;
    void accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                std::span<const std::byte> private_data) override;
    void reject(ConnectionId request, std::span<const std::byte> private_data) override;
    void disconnect(ConnectionId connection) override;
    void forget(ConnectionId connection) noexcept override;
    [[nodiscard]] int fd() const noexcept override { return inbox_->fd(); }
    [[nodiscard]] std::optional<ConnectEvent> next_event() override;

private:
    enum class State {
        requested,  ///< active: the request is out
        asked,      ///< passive: the request was given to the user
        accepted,   ///< passive: the reply is out
        established,
        ended,  ///< its last event is queued or taken
    };
    struct Connection {
        State state{};
        Endpoint peer;
        std::string name;
        Offer peer_offer;  ///< passive: of the request
        ConnectingQp qp;   ///< active: until the reply
        PathAttributes path;
        std::uint32_t psn = 0;
    };

    void handle(Message message);
    void on_request(Message message);
    void on_reply(ConnectionId id, Connection& connection, Message message);
    /// RTR and RTS with what both sides agreed.
    void make_ready(Connection& connection, ConnectingQp& qp, const PathAttributes& path, const Offer& peer);
    [[nodiscard]] Offer offer_of(const ConnectingQp& qp, const PathAttributes& path, std::uint32_t psn);
    [[nodiscard]] std::uint32_t next_psn() noexcept;
    void queue(ConnectEvent event);
    void fail(ConnectionId id, Connection& connection, int error, std::string text,
              std::vector<std::byte> private_data = {});
    [[nodiscard]] Connection& find(ConnectionId id, State state, std::string_view what);
    void tell(const Connection& connection, ConnectionId own, Message message);
    void refuse(const Connection& connection, ConnectionId own, int error, std::string text,
                std::span<const std::byte> private_data = {});
    void leave(ConnectionId id, const Connection& connection, const std::string& why);

    SoftDevice& device_;
    std::shared_ptr<NameTable> table_;
    std::shared_ptr<Inbox> inbox_;
    std::map<ListenerId, std::string> listeners_;
    std::map<ConnectionId, Connection> connections_;
    std::deque<ConnectEvent> events_;
    std::uint64_t last_id_ = 0;
    std::uint32_t last_psn_ = 0;
};

void require_fits(std::span<const std::byte> data, std::size_t most) {
    if (data.size() <= most)
        return;
    throw Error(
        std::errc::message_size,
        fmt::format("private data of {} bytes does not fit: at most {} go along here", data.size(), most));
}

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
    require_fits(private_data, kRequestPrivateDataMax);
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
    const auto listener = table_->find(address);
    if (listener)
        request.listener = listener->id;
    if (!listener || !listener->inbox->put(std::move(request))) {
        fail(id, connection, ECONNREFUSED,
             fmt::format("cannot connect to \"{}\": nobody listens there on software fabric \"{}\" of this "
                         "process; start "
                         "the listener first",
                         address, device_.fabric_name()));
    }
    return id;
}

void NamesConnector::accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                            std::span<const std::byte> private_data) {
    require_fits(private_data, kReplyPrivateDataMax);
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
        leave(id, found->second, "the peer gave the connection up");
        connections_.erase(found);
    }
    std::erase_if(events_, [id](const ConnectEvent& event) { return event.connection == id; });
}

// ---- messages ----

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
    const auto found = connections_.find(message.to);
    if (found == connections_.end()) {
        // Forgotten here. A peer that this side never heard of learns of it only now.
        if (message.kind != Message::Kind::reply)
            return;
        Connection forgotten;
        forgotten.peer = std::move(message.from);
        return refuse(forgotten, message.to, ECONNRESET, "the peer gave the connection up");
    }
    auto& [id, connection] = *found;
    switch (message.kind) {
        case Message::Kind::request: break;
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
           .text = std::move(message.text)});
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
           .text = {}});
}

void NamesConnector::make_ready(Connection& connection, ConnectingQp& qp, const PathAttributes& path,
                                const Offer& peer) {
    // What one side may have in flight is what the other serves.
    PathAttributes agreed = path;
    const auto most = static_cast<std::uint8_t>(std::min<std::uint32_t>(device_.limits().rd_atomic_max, 255));
    agreed.max_rd_atomic = std::min({path.max_rd_atomic, peer.max_dest_rd_atomic, most});
    agreed.max_dest_rd_atomic = std::min(path.max_dest_rd_atomic, most);
    auto rtr = to_rtr(peer.qp, agreed, device_.port(), 0, device_.query_port().active_mtu);
    qp.modify(rtr.attr, rtr.mask);
    auto rts = to_rts(connection.psn, agreed);
    qp.modify(rts.attr, rts.mask);
}

Offer NamesConnector::offer_of(const ConnectingQp& qp, const PathAttributes& path, std::uint32_t psn) {
    const ibv_mtu active = device_.query_port().active_mtu;
    const auto most = static_cast<std::uint8_t>(std::min<std::uint32_t>(device_.limits().rd_atomic_max, 255));
    Offer offer;
    std::memcpy(offer.qp.gid.data(), device_.gids().front().gid.raw, offer.qp.gid.size());
    offer.qp.qp_num = qp.qp_num;
    offer.qp.psn = psn;
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
    if (connection.peer.inbox != nullptr && connection.peer.inbox->put(std::move(message)))
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
    (void)inbox_->put(std::move(answer));
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
        case State::requested:  // has no peer yet; its reply will find nobody
        case State::ended: break;
    }
}

}  // namespace

std::unique_ptr<Connector> make_names_connector(SoftDevice& device) {
    return std::make_unique<NamesConnector>(device);
}

}  // namespace pollcore
