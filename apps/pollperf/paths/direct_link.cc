#include "pollperf/paths/direct_link.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

DirectLink::DirectLink(Device& device) : device_(device), connector_(make_connector(device)) {}

DirectLink::~DirectLink() {
    if (pending_ != 0) {
        connector_->forget(pending_);
    }
    for (const ConnectionId connection : established_) {
        connector_->forget(connection);
    }
    connector_.reset();
    take_async_events();
}

ConnectingQp DirectLink::connecting(ibv_qp* qp) {
    return {.qp_num = qp->qp_num,
            .srq = false,
            .modify = [this, qp](ibv_qp_attr& attr, int mask) { device_.modify(qp, attr, mask); },
            .type = static_cast<QpType>(qp->qp_type)};
}

void DirectLink::take_async_events() {
    while (const auto event = device_.next_async_event()) {
        const bool established = event->event_type == IBV_EVENT_COMM_EST;
        const std::uint32_t qp_num = established ? event->element.qp->qp_num : 0;
        device_.acknowledge(*event);
        if (established && connector_) {
            connector_->communication_established(qp_num);
        }
    }
}

void DirectLink::take_events(Clock::time_point deadline) {
    std::array<pollfd, 2> fds{pollfd{.fd = connector_->fd(), .events = POLLIN, .revents = 0},
                              pollfd{.fd = device_.async_fd(), .events = POLLIN, .revents = 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    // After an interrupted poll(2) there may be no event: callers wait in a loop with their own deadline.
    (void)::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    take_async_events();
    while (auto event = connector_->next_event()) {
        switch (event->kind) {
            case ConnectEvent::Kind::request: requests_.push_back(std::move(*event)); break;
            case ConnectEvent::Kind::established:
            case ConnectEvent::Kind::failed:
                if (event->connection == pending_ && pending_ != 0) {
                    outcome_ = std::move(*event);
                } else {
                    // The event is for another connection. Its request could not be delivered, or was withdrawn while
                    // it waited here.
                    std::erase_if(requests_,
                                  [&](const ConnectEvent& request) { return request.connection == event->connection; });
                }
                break;
            case ConnectEvent::Kind::withdrawn:
                std::erase_if(requests_,
                              [&](const ConnectEvent& request) { return request.connection == event->connection; });
                break;
            case ConnectEvent::Kind::disconnected:
                peer_left_ = peer_left_ || established_.contains(event->connection);
                established_.erase(event->connection);
                break;
        }
    }
}

ConnectEvent DirectLink::await_connection(const std::string& what, std::chrono::milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    while (!outcome_ && Clock::now() < deadline) {
        take_events(deadline);
    }
    if (!outcome_) {
        throw MeasurementError(fmt::format("{}: no answer within {} ms", what, timeout.count()));
    }
    const ConnectEvent outcome = *std::exchange(outcome_, std::nullopt);
    const ConnectionId connection = std::exchange(pending_, 0);
    if (outcome.kind == ConnectEvent::Kind::failed) {
        const std::string said = refusal_text(outcome.private_data);
        throw MeasurementError(said.empty() ? fmt::format("{}: {}", what, outcome.text)
                                            : fmt::format("{}: the peer refused: {}", what, said));
    }
    established_.insert(connection);
    return outcome;
}

std::vector<std::byte> DirectLink::connect(ibv_qp* qp, const std::string& address,
                                           const std::vector<std::byte>& private_data,
                                           std::chrono::milliseconds timeout) {
    pending_ = connector_->connect(address, connecting(qp), measured_path(), private_data);
    return await_connection(fmt::format("connecting to {}", address), timeout).private_data;
}

std::string DirectLink::listen(const std::string& address) {
    return connector_->address_of(connector_->listen(address));
}

std::optional<PeerRequest> DirectLink::next_request(std::chrono::milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    while (requests_.empty() && Clock::now() < deadline) {
        take_events(deadline);
    }
    if (requests_.empty()) {
        return std::nullopt;
    }
    return PeerRequest{requests_.front().text, requests_.front().private_data};
}

void DirectLink::accept(ibv_qp* qp, const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout) {
    const ConnectEvent request = std::move(requests_.front());
    requests_.pop_front();
    pending_ = request.connection;
    connector_->accept(pending_, connecting(qp), measured_path(), private_data);
    (void)await_connection(fmt::format("accepting {}", request.text), timeout);
}

void DirectLink::reject(const std::vector<std::byte>& private_data) {
    const ConnectionId request = requests_.front().connection;
    requests_.pop_front();
    connector_->reject(request, private_data);
}

bool DirectLink::peer_left() {
    if (!peer_left_) {
        take_events(Clock::now());
    }
    return peer_left_;
}

void DirectLink::disconnect(std::chrono::milliseconds timeout) {
    for (const ConnectionId connection : established_) {
        connector_->disconnect(connection);
    }
    const auto deadline = Clock::now() + timeout;
    while (!established_.empty() && Clock::now() < deadline) {
        take_events(deadline);
    }
}

std::string refusal_text(const std::vector<std::byte>& private_data) {
    std::string text;
    for (const std::byte byte : private_data) {
        const auto c = std::to_integer<unsigned char>(byte);
        if (c < ' ' || c > '~') {
            return {};  // the bytes are no text
        }
        text += static_cast<char>(c);
    }
    return text;
}

}  // namespace pollcore::perf
