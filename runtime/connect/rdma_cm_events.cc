// Handles the events of rdma_cm.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/event_fd.hpp"
#include "connect/handshake.hpp"
#include "connect/rdma_cm_connector.hpp"

namespace pollcore {
namespace {

/// One next_event() takes at most this many events of rdma_cm. Most events return nothing to the caller, because they
/// only begin the next step.
constexpr int kEventBurst = 16;

/// The reason code of a rejection by the peer's program. Only such a rejection contains private data. The reason codes
/// are from the InfiniBand architecture (volume 1, 12.6.7.2).
constexpr int kRejectedByConsumer = 28;

std::string rejection_text(int reason) {
    switch (reason) {
        case 1: return "it has no queue pair left";
        case 3: return "it has no resources left";
        case 4: return "it waited too long for an answer";
        case 5: return "it does not support such a request";
        case 8: return "nobody listens there";
        case 9: return "it does not serve this type of queue pair";
        case 10: return "it still holds an old connection of this queue pair's number; try again";
        case 12: return "it does not know the GID";
        case 26: return "it does not support the path MTU";
        case 27: return "it cannot serve as many reads and atomics in flight";
        case kRejectedByConsumer: return "its program said no";
        default: return fmt::format("reason {} of the InfiniBand connection manager", reason);
    }
}

int errno_of(const int status, int otherwise) {
    return status < 0 ? -status : otherwise;
}

}  // namespace

std::optional<RdmaCmConnector::CmEvent> RdmaCmConnector::take() {
    rdma_cm_event* taken = nullptr;
    if (rdma_get_cm_event(channel_.get(), &taken) != 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return std::nullopt;
        }
        throw Error(errno, fmt::format("cannot take the events of rdma_cm on {}", own_device()));
    }
    // Makes sure that the event is acknowledged, even if something throws below, because rdma_destroy_id() waits for
    // that. If there is no memory for a request, its identifier is destroyed, and the kernel rejects the request.
    const bool request = taken->event == RDMA_CM_EVENT_CONNECT_REQUEST;
    UniqueId of_request(request ? taken->id : nullptr);
    const std::unique_ptr<rdma_cm_event, decltype([](rdma_cm_event* one) noexcept { (void)rdma_ack_cm_event(one); })>
        acknowledged(taken);
    CmEvent event;
    event.type = taken->event;
    event.status = taken->status;
    event.id = taken->id;
    event.number = reinterpret_cast<std::uintptr_t>(taken->id->context);
    const rdma_conn_param& param = taken->param.conn;
    const auto* data = static_cast<const std::byte*>(param.private_data);
    if (data != nullptr) {
        event.private_data.assign(data, data + param.private_data_len);
    }
    event.responder_resources = param.responder_resources;
    event.initiator_depth = param.initiator_depth;
    (void)of_request.release();
    return event;
}

std::optional<ConnectEvent> RdmaCmConnector::next_event() {
    if (!pending_.empty()) {
        ConnectEvent event = std::move(pending_.front());
        pending_.pop_front();
        return event;
    }
    (void)drain_event(pending_fd_.get());
    for (int taken = 0; taken < kEventBurst; ++taken) {
        auto event = take();
        if (!event) {
            return std::nullopt;
        }
        moved_ = false;
        auto result = handle(*event);
        if (result || moved_) {  // moving one QP is enough work for one call
            return result;
        }
    }
    return std::nullopt;
}

ConnectEvent RdmaCmConnector::end(Connection& connection, ConnectEvent::Kind kind, int error, std::string text) {
    ConnectEvent event;
    event.kind = kind;
    event.connection = connection.number;
    event.error = error;
    event.text = std::move(text);
    connections_.erase(connection.number);
    return event;
}

std::optional<ConnectEvent> RdmaCmConnector::handle(CmEvent& event) {
    if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        return handle_request(event);
    }
    if (listeners_.contains(event.number)) {
        return handle_of_listener(event.number, event);
    }
    const auto found = connections_.find(event.number);
    return found == connections_.end() ? std::nullopt : handle_of_connection(found->second, event);
}

std::optional<ConnectEvent> RdmaCmConnector::handle_of_listener(ListenerId listener, const CmEvent& event) {
    if (event.type != RDMA_CM_EVENT_DEVICE_REMOVAL) {
        return std::nullopt;  // for example a changed address; the listener still listens
    }
    ConnectEvent result;
    result.kind = ConnectEvent::Kind::failed;
    result.listener = listener;
    result.error = ENODEV;
    result.text = fmt::format("nobody listens on {} any more: {} was removed", address_of(listener), own_device());
    listeners_.erase(listener);
    return result;
}

std::optional<ConnectEvent> RdmaCmConnector::handle_request(CmEvent& event) {
    const ListenerId listener = event.number;
    Connection connection;
    connection.number = ++last_number_;
    connection.state = State::requested;
    connection.answering = true;
    connection.id.reset(event.id);
    connection.peer = CmAddress(*rdma_get_peer_addr(event.id)).text();
    connection.rd_atomic = event.initiator_depth;
    connection.dest_rd_atomic = event.responder_resources;
    // librdmacm has given the new id the listener's context, which is the listener's number.
    event.id->context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(connection.number));

    ConnectEvent result;
    result.listener = listener;
    if (const auto found = listeners_.find(listener); found != listeners_.end()) {
        connection.form = found->second.form;
    }
    const DecodedPrivateData data = private_data_that_came(connection.form, event.private_data);
    const std::string other = foreign_device(*event.id);
    if (!other.empty() || data.fault != PrivateDataFault::none) {
        result.kind = ConnectEvent::Kind::failed;
        result.error = other.empty() ? EPROTO : ENODEV;
        result.text =
            fmt::format("refused the request of {}: {}", connection.peer,
                        other.empty() ? fmt::format("of its private data, {}", private_data_fault_text(data.fault))
                                      : fmt::format("it came to {}, not to {}", other, own_device()));
        (void)rdma_reject(event.id, nullptr, 0);  // if this fails, the peer has already left
        return result;
    }
    result.kind = ConnectEvent::Kind::request;
    result.connection = connection.number;
    result.private_data.assign(data.payload.begin(), data.payload.end());
    result.flow = data.flow;
    result.max_dest_rd_atomic = connection.rd_atomic;
    result.text = connection.peer;
    requests_.push_back(connection.number);
    connections_.emplace(connection.number, std::move(connection));
    return result;
}

std::optional<ConnectEvent> RdmaCmConnector::handle_of_connection(Connection& connection, CmEvent& event) {
    using Kind = ConnectEvent::Kind;
    const bool was_established = connection.state == State::established;
    const auto failed = [&](int otherwise, const std::string& why) {
        return end(connection, Kind::failed, errno_of(event.status, otherwise),
                   fmt::format("cannot connect with {} from {}: {}", connection.peer, own_device(), why));
    };

    switch (event.type) {
        case RDMA_CM_EVENT_ADDR_RESOLVED:
            return connection.state == State::finding_neighbour
                       ? move(connection)
                       : attempt(connection, [&] { address_resolved(connection); });
        case RDMA_CM_EVENT_ADDR_ERROR:
            if (connection.state == State::finding_neighbour) {
                return failed(EHOSTUNREACH, "no neighbour answers for its address");
            }
            return attempt(connection, [&] {
                address_failed(connection, Error(errno_of(event.status, EHOSTUNREACH),
                                                 fmt::format("cannot reach {} from {}: no network interface of an RDMA "
                                                             "device leads there, or nobody has the address",
                                                             connection.peer, own_device())));
            });
        case RDMA_CM_EVENT_ROUTE_RESOLVED: return attempt(connection, [&] { send_request(connection); });
        case RDMA_CM_EVENT_ROUTE_ERROR: return failed(EHOSTUNREACH, "there is no path to it");
        case RDMA_CM_EVENT_CONNECT_RESPONSE: return handle_response(connection, event);
        case RDMA_CM_EVENT_ESTABLISHED: {
            connection.state = State::established;
            ConnectEvent result;
            result.kind = Kind::established;
            result.connection = connection.number;
            return result;
        }
        case RDMA_CM_EVENT_REJECTED:
            // After `established`, a rejection means that the peer dropped the connection before it got the last
            // message of the handshake.
            return was_established ? end(connection, Kind::disconnected, 0, {}) : handle_rejection(connection, event);
        case RDMA_CM_EVENT_UNREACHABLE: return failed(ETIMEDOUT, "it does not answer");
        case RDMA_CM_EVENT_CONNECT_ERROR: return failed(ECONNABORTED, "the handshake failed");
        case RDMA_CM_EVENT_DISCONNECTED:
            if (!was_established) {
                return failed(ECONNRESET, "it left before the connection was established");
            }
            if (!connection.disconnect_called) {
                // The peer waits for this disconnect. If the call fails, the peer has stopped waiting.
                (void)rdma_disconnect(connection.id.get());
            }
            return end(connection, Kind::disconnected, 0, {});
        case RDMA_CM_EVENT_DEVICE_REMOVAL:
            if (!was_established) {
                return failed(ENODEV, "the device was removed");
            }
            return end(connection, Kind::disconnected, ENODEV, fmt::format("{} was removed", own_device()));
        case RDMA_CM_EVENT_ADDR_CHANGE:      // the connection goes on
        case RDMA_CM_EVENT_TIMEWAIT_EXIT:    // the QP's number may be used again, which the kernel handles
        case RDMA_CM_EVENT_CONNECT_REQUEST:  // handled before
        case RDMA_CM_EVENT_MULTICAST_JOIN:   // no multicast is joined
        case RDMA_CM_EVENT_MULTICAST_ERROR: return std::nullopt;
    }
    return std::nullopt;  // an event of a newer librdmacm, which this handshake does not need
}

std::optional<ConnectEvent> RdmaCmConnector::handle_response(Connection& connection, const CmEvent& event) {
    // If this throws, attempt() destroys the identifier, and then the kernel rejects the peer's answer.
    auto failed = attempt(connection, [&] {
        const DecodedPrivateData data = private_data_that_came(connection.form, event.private_data);
        if (data.fault != PrivateDataFault::none) {
            throw Error(EPROTO, fmt::format("refused the answer of {}: of its private data, {}", connection.peer,
                                            private_data_fault_text(data.fault)));
        }
        connection.answer.assign(data.payload.begin(), data.payload.end());
        connection.peer_flow = data.flow;
        connection.rd_atomic = std::min(connection.rd_atomic, event.initiator_depth);
        connection.dest_rd_atomic = std::min(connection.dest_rd_atomic, event.responder_resources);
    });
    return failed ? std::move(failed) : begin_moving(connection);
}

std::optional<ConnectEvent> RdmaCmConnector::begin_moving(Connection& connection) {
    bool finding = false;
    auto failed = attempt(connection, [&] { finding = find_neighbour(connection); });
    return failed || finding ? std::move(failed) : move(connection);
}

std::optional<ConnectEvent> RdmaCmConnector::move(Connection& connection) {
    connection.neighbour.reset();
    moved_ = true;
    auto failed = attempt(connection, [&] { move_and_tell(connection); });
    if (failed || connection.state != State::established) {
        return failed;
    }
    ConnectEvent result;
    result.kind = ConnectEvent::Kind::established;
    result.connection = connection.number;
    result.private_data = std::exchange(connection.answer, {});
    result.flow = connection.peer_flow;
    return result;
}

ConnectEvent RdmaCmConnector::handle_rejection(Connection& connection, const CmEvent& event) {
    std::vector<std::byte> private_data;
    std::string text = fmt::format("{} rejected the connection from {}: {}", connection.peer, own_device(),
                                   rejection_text(event.status));
    if (event.status == kRejectedByConsumer) {
        const DecodedPrivateData data = private_data_that_came(connection.form, event.private_data);
        private_data.assign(data.payload.begin(), data.payload.end());
        if (data.fault != PrivateDataFault::none) {
            text += fmt::format(" (its private data is left out: {})", private_data_fault_text(data.fault));
        }
    }
    ConnectEvent result = end(connection, ConnectEvent::Kind::failed, ECONNREFUSED, std::move(text));
    result.private_data = std::move(private_data);
    return result;
}

}  // namespace pollcore
