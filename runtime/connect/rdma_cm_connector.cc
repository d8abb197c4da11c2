// The calls from outside. rdma_cm_events.cc handles the events of rdma_cm, and rdma_cm_steps.cc contains the steps of a
// connection.
#include "connect/rdma_cm_connector.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "connect/handshake.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {
namespace {

/// This many requests of each listener may wait in the kernel until next_event() takes them.
constexpr int kBacklog = 128;

/// One call of look_for_withdrawn_requests() checks a tenth of the waiting requests, but at least kLookedAt and at most
/// kLookedAtMost. Each check takes a system call.
constexpr std::size_t kLookedAt = 64;
constexpr std::size_t kLookedAtMost = 2048;

void* as_context(std::uint64_t number) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
}

Error os_error(const char* what) {
    return Error(errno, std::string("cannot ") + what);
}

void watch(int epoll, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        throw os_error("watch the events of rdma_cm");
    }
}

}  // namespace

RdmaCmConnector::RdmaCmConnector(Device& device)
    : device_(device),
      channel_(rdma_create_event_channel()),
      pending_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (channel_ == nullptr) {
        throw Error(errno,
                    "cannot open rdma_cm (/dev/infiniband/rdma_cm), which makes connections: load the module "
                    "rdma_ucm, and see that the program may read and write it");
    }
    if (!pending_fd_.valid() || !epoll_.valid()) {
        throw os_error("make the file descriptors of a connector");
    }
    const int flags = ::fcntl(channel_->fd, F_GETFL);
    if (flags < 0 || ::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        throw os_error("make the events of rdma_cm non-blocking");
    }
    watch(epoll_.get(), channel_->fd);
    watch(epoll_.get(), pending_fd_.get());
}

RdmaCmConnector::~RdmaCmConnector() = default;

RdmaCmConnector::UniqueId RdmaCmConnector::create_id(std::uint64_t number) {
    rdma_cm_id* id = nullptr;
    if (rdma_create_id(channel_.get(), &id, as_context(number), RDMA_PS_TCP) != 0) {
        throw os_error("make an identifier of rdma_cm");
    }
    return UniqueId(id);
}

std::string RdmaCmConnector::own_device() const {
    return fmt::format("RDMA device {} port {}", device_.name(), device_.port());
}

std::string RdmaCmConnector::foreign_device(const rdma_cm_id& id) const {
    if (id.verbs == nullptr) {
        return "no RDMA device";
    }
    const char* name = ibv_get_device_name(id.verbs->device);
    if (device_.name() == name && id.port_num == device_.port()) {
        return {};
    }
    return fmt::format("RDMA device {} port {}", name, id.port_num);
}

void RdmaCmConnector::check_path(const PathAttributes& path) {
    const auto within = [](const char* name, unsigned value, unsigned max) {
        if (value > max) {
            throw Error(EINVAL, fmt::format("path attribute {} = {}: it is 0 to {}", name, value, max));
        }
    };
    within("timeout", path.timeout, 31);
    within("retry_count", path.retry_count, 7);
    within("rnr_retry", path.rnr_retry, 7);
    within("min_rnr_timer", path.min_rnr_timer, 31);
    const bool is_an_mtu = path.mtu >= 256 && path.mtu <= 4096 && (path.mtu & (path.mtu - 1)) == 0;
    if (path.mtu != 0 && !is_an_mtu) {
        throw Error(
            EINVAL,
            fmt::format("path attribute mtu = {}: it is 256, 512, 1024, 2048, 4096, or 0 for the port's", path.mtu));
    }
}

// In TCP's port space, librdmacm makes only reliable connections.
void RdmaCmConnector::check_type(const ConnectingQp& qp) const {
    if (qp.type != QpType::rc) {
        throw Error(EOPNOTSUPP, fmt::format("cannot connect queue pair {} of {} by address: rdma_cm connects RC queue "
                                            "pairs. Connect it by exchanged information",
                                            qp.called(), own_device()));
    }
}

// --- Listening ---

ListenerId RdmaCmConnector::listen(const std::string& address, PrivateDataForm form) {
    CmAddress wanted = CmAddress::parse(address);
    const ListenerId number = ++last_number_;
    UniqueId id = create_id(number);
    if (rdma_bind_addr(id.get(), wanted.get()) != 0) {
        const int error = errno;
        const char* hint = error == EADDRINUSE ? "; another listener has it"
                           : error == EADDRNOTAVAIL || error == ENODEV
                               ? "; no RDMA device has this address (`rdma link` shows their network interfaces, "
                                 "`ip address` the addresses of those)"
                               : "";
        throw Error(error, fmt::format("cannot listen on {} with {}{}", address, own_device(), hint));
    }
    // A wildcard address belongs to no device. So the device of each request is checked when the request comes.
    if (const std::string other = foreign_device(*id); !wanted.is_wildcard() && !other.empty()) {
        throw Error(EADDRNOTAVAIL,
                    fmt::format("cannot listen on {} with {}: the address is of {}", address, own_device(), other));
    }
    if (rdma_listen(id.get(), kBacklog) != 0) {
        throw Error(errno, fmt::format("cannot listen on {} with {}", address, own_device()));
    }
    listeners_.emplace(number, Listener{std::move(id), form});
    return number;
}

std::string RdmaCmConnector::address_of(ListenerId listener) const {
    const auto found = listeners_.find(listener);
    if (found == listeners_.end()) {
        throw Error(EINVAL, fmt::format("there is no listener {} on {}", listener, own_device()));
    }
    return CmAddress(*rdma_get_local_addr(found->second.id.get())).text();
}

void RdmaCmConnector::stop_listening(ListenerId listener) noexcept {
    listeners_.erase(listener);
}

// --- Connecting ---

ConnectionId RdmaCmConnector::connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                      std::span<const std::byte> private_data) {
    CmAddress destination = CmAddress::parse(address);
    check_type(qp);
    check_path(path);
    const int port_mtu = 128 << device_.query_port().active_mtu;
    if (path.mtu != 0 && path.mtu != port_mtu) {
        throw Error(EINVAL,
                    fmt::format("cannot connect to {} with a path MTU of {} bytes: over rdma_cm it is the port's, "
                                "{} on {}. Change the network interface's MTU, or connect by exchanged "
                                "information",
                                address, path.mtu, port_mtu, own_device()));
    }
    std::vector<std::byte> frame = private_data_to_send(qp.form, private_data, kRequestPrivateDataMax, qp.flow);

    Connection connection;
    connection.number = ++last_number_;
    connection.state = State::resolving_address;
    connection.peer = destination.text();
    connection.form = qp.form;
    connection.qp = std::move(qp);
    connection.path = path;
    connection.frame = std::move(frame);
    connection.destination = destination;
    const std::uint32_t rd_atomic_max = device_.limits().rd_atomic_max;
    connection.rd_atomic = static_cast<std::uint8_t>(std::min<std::uint32_t>(path.max_rd_atomic, rd_atomic_max));
    connection.dest_rd_atomic =
        static_cast<std::uint8_t>(std::min<std::uint32_t>(path.max_dest_rd_atomic, rd_atomic_max));
    Connection& kept = connections_.emplace(connection.number, std::move(connection)).first->second;
    const ConnectionId number = kept.number;
    auto failed = attempt(kept, [&] {
        if (const int error = resolve_address(kept, nullptr); error != 0) {
            address_failed(kept, Error(error, fmt::format("cannot reach {} from {}", kept.peer, own_device())));
        }
    });
    if (failed) {
        push(std::move(*failed));
    }
    return number;
}

RdmaCmConnector::Connection& RdmaCmConnector::find_request(ConnectionId request, const char* what) {
    const auto found = connections_.find(request);
    if (found == connections_.end() ||
        (found->second.state != State::requested && found->second.state != State::withdrawn)) {
        throw Error(EINVAL, fmt::format("cannot {} connection {} on {}: it is no request that waits for an answer",
                                        what, request, own_device()));
    }
    return found->second;
}

void RdmaCmConnector::accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                             std::span<const std::byte> private_data) {
    Connection& connection = find_request(request, "accept");
    if (connection.state == State::withdrawn) {
        return push(end(connection, ConnectEvent::Kind::failed, ECONNRESET,
                        fmt::format("{} gave the connection up before it was accepted", connection.peer)));
    }
    check_type(qp);
    check_path(path);
    connection.frame = private_data_to_send(connection.form, private_data, kReplyPrivateDataMax, qp.flow);
    connection.qp = std::move(qp);
    connection.path = path;
    agree_as_answerer(connection);
    if (auto failed = begin_moving(connection)) {
        push(std::move(*failed));
    }
}

void RdmaCmConnector::reject(ConnectionId request, std::span<const std::byte> private_data) {
    Connection& connection = find_request(request, "reject");
    const auto frame = private_data_to_send(connection.form, private_data, kRejectPrivateDataMax);
    // If this call fails, the peer has already left, and nobody has to be told.
    (void)rdma_reject(connection.id.get(), frame.data(), static_cast<std::uint8_t>(frame.size()));
    connections_.erase(request);
}

void RdmaCmConnector::disconnect(ConnectionId number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) {
        return;  // the connection has ended: its event `disconnected` or `failed` was returned, or soon will be
    }
    Connection& connection = found->second;
    if (connection.state != State::established) {
        throw Error(ENOTCONN, fmt::format("cannot disconnect from {}: the connection is not established. Forget it "
                                          "instead",
                                          connection.peer));
    }
    if (rdma_disconnect(connection.id.get()) != 0) {
        throw Error(errno, fmt::format("cannot disconnect from {}", connection.peer));
    }
    connection.disconnect_called = true;
}

void RdmaCmConnector::forget(ConnectionId connection) noexcept {
    // The kernel sends the peer a rejection or a disconnect, depending on the connection's state.
    connections_.erase(connection);
    const auto of_this = [connection](const ConnectEvent& event) { return event.connection == connection; };
    std::erase_if(pending_, of_this);
}

void RdmaCmConnector::communication_established(std::uint32_t qp_num) {
    for (auto& [number, connection] : connections_) {
        // In any other state, the connection does not wait for the last message of the handshake.
        if (connection.qp.qp_num == qp_num && connection.state == State::accepting) {
            if (rdma_notify(connection.id.get(), IBV_EVENT_COMM_EST) != 0 && errno != EINVAL) {
                throw Error(errno, fmt::format("cannot establish the connection with {}", connection.peer));
            }
        }
    }
}

// The kernel raises no event when a peer gives up a request that was not accepted yet (ucma_event_handler() in
// drivers/infiniband/core/ucma.c). But rdma_init_qp_attr() fails for such a request.
void RdmaCmConnector::look_for_withdrawn_requests() {
    const std::size_t most = std::clamp(requests_.size() / 10, kLookedAt, kLookedAtMost);
    std::size_t looked = 0;
    for (std::size_t left = requests_.size(); left > 0 && looked < most; --left) {
        const ConnectionId number = requests_.front();
        requests_.pop_front();
        const auto found = connections_.find(number);
        if (found == connections_.end() || found->second.state != State::requested) {
            continue;
        }
        ++looked;
        Connection& connection = found->second;
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        int mask = 0;
        if (rdma_init_qp_attr(connection.id.get(), &attr, &mask) != 0 && errno == EINVAL) {
            connection.state = State::withdrawn;
            ConnectEvent event;
            event.kind = ConnectEvent::Kind::withdrawn;
            event.connection = number;
            push(std::move(event));
        } else {
            requests_.push_back(number);
        }
    }
}

void RdmaCmConnector::push(ConnectEvent event) {
    pending_.push_back(std::move(event));
    const std::uint64_t one = 1;
    if (::write(pending_fd_.get(), &one, sizeof one) != sizeof one) {
        throw os_error("signal an event of a connector");
    }
}

}  // namespace pollcore
