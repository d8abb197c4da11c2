// Connections by address: the threads that wait for an outcome, and the events that bring the outcome.
#include <new>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/map_place.hpp"
#include "base/printable.hpp"
#include "base/probe.hpp"
#include "base/undo.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

constexpr std::chrono::milliseconds kLookAtRequestsEvery{100};

// The largest number of events that one job takes. The descriptor stays readable while there are more events.
constexpr int kEventsInJob = 64;

void require_private_data(std::size_t size, std::size_t most) {
    if (size > most) {
        throw Error(EMSGSIZE, fmt::format("{} bytes of private data; accepted is up to {}", size, most));
    }
}

}  // namespace

ConnectingQp RuntimeState::connecting(QpSlot& qp, PrivateDataForm form) {
    return {.qp_num = qp.qp_num,
            .srq = qp.srq != nullptr,
            .modify =
                [this, handle = qp.handle](ibv_qp_attr& attr, int mask) {
                    QpSlot& slot = live_qp_slot(handle);
                    const bool to_rts = (mask & IBV_QP_STATE) && attr.qp_state == IBV_QPS_RTS;
                    const bool moves = (mask & IBV_QP_STATE) && attr.qp_state != IBV_QPS_INIT;
                    modify_here(slot, attr, mask, to_rts ? QpState::ready : slot.state);
                    slot.moved |= moves;
                },
            .type = qp.type,
            .flow = flow_block_of(qp),
            .form = form,
            .name = qp.name.string()};
}

ConnectionKey RuntimeState::begin_connect_here(QpHandle handle, const std::string& address,
                                               const ConnectOptions& options, Report report) {
    require_private_data(options.private_data.size(), kRawRequestPrivateDataMax);  // the connector knows the form
    QpSlot& qp = live_qp_slot(handle);
    require_connectable(qp);
    require_not_ending(qp);
    if (qp.connection != 0 || qp.moved) {
        throw Error(EISCONN, fmt::format("queue pair {} is connected, or was: reset it first", qp.called()));
    }
    Attempts::node_type attempt = new_attempt(qp, report, fmt::format("connecting to {}", address), options.timeout);
    MapPlace own(qp_of_connection_, handle.index);
    const ConnectionId id = devices_[qp.device]->connector->connect(address, connecting(qp, options.form), options.path,
                                                                    options.private_data);
    qp.connection = id;
    own.take({qp.device, id});
    return await_outcome_here(std::move(attempt), {qp.device, id});
}

// The attempt is allocated before the connection begins, so that every connection that has begun has an attempt. At
// first it contains the event that the application gets if the queue pair ends meanwhile.
RuntimeState::Attempts::node_type RuntimeState::new_attempt(const QpSlot& qp, Report report, std::string what,
                                                            std::chrono::milliseconds timeout) {
    Attempts one;
    Attempt& attempt = one[{}];
    attempt.report = report;
    attempt.qp = qp.handle;
    attempt.client = qp.client;
    // A deadline beyond the clock's end would wrap into the past.
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
    attempt.deadline = platform->now() + std::clamp(timeout, std::chrono::milliseconds(0), kLongest);
    attempt.what = std::move(what);
    attempt.event.kind = ConnectEvent::Kind::failed;
    attempt.event.error = ECANCELED;
    attempt.event.text = "the queue pair was closed or reset meanwhile, or its device lost";
    if (report == Report::by_event) {
        next_expiry_ = std::min(next_expiry_, attempt.deadline);
    }
    return one.extract(one.begin());
}

ConnectionKey RuntimeState::await_outcome_here(Attempts::node_type attempt, const ConnectionKey& key) noexcept {
    attempt.key() = key;
    const std::lock_guard lock(waiting_mutex_);
    attempts_.insert(std::move(attempt));
    return key;
}

ConnectionKey RuntimeState::begin_accept_here(std::uint32_t device, ConnectionId request, QpHandle handle,
                                              const FlowBlock& flow, const ConnectOptions& options, Report report) {
    require_private_data(options.private_data.size(), kRawReplyPrivateDataMax);
    QpSlot& qp = live_qp_slot(handle);
    if (qp.device != device) {
        throw Error(EINVAL, "the queue pair is of another device than the listener");
    }
    require_connectable(qp);
    if (qp.connection != 0 || qp.moved) {
        throw Error(EISCONN, fmt::format("queue pair {} is connected, or was: reset it first", qp.called()));
    }
    require_not_ending(qp);
    require_same_flow(qp, flow.kind);
    Attempts::node_type attempt = new_attempt(qp, report, "accepting a connection", options.timeout);
    MapPlace own(qp_of_connection_, handle.index);
    const ConnectionKey key = await_outcome_here(std::move(attempt), {device, request});
    qp.connection = request;
    own.take(key);
    qp.peer_flow = flow;
    Undo take_back([&]() noexcept {
        drop_attempt_here(key);
        fail_connection_here(qp);
    });
    devices_[device]->connector->accept(request, connecting(qp), options.path, options.private_data);
    take_back.keep();
    return key;
}

std::vector<std::byte> RuntimeState::connect(QpHandle handle, const std::string& address,
                                             const ConnectOptions& options) {
    const std::string what = fmt::format("connecting to {}", address);
    const ConnectionKey key = executor_->run([&] { return begin_connect_here(handle, address, options); });
    return await_connection(key, handle, options, what);
}

void RuntimeState::accept(std::uint32_t device, ConnectionId request, QpHandle handle, const FlowBlock& flow,
                          const ConnectOptions& options) {
    const std::string what = "accepting a connection";
    const ConnectionKey key = executor_->run([&] { return begin_accept_here(device, request, handle, flow, options); });
    (void)await_connection(key, handle, options, what);
}

std::vector<std::byte> RuntimeState::await_connection(const ConnectionKey& key, QpHandle handle,
                                                      const ConnectOptions& options, const std::string& what) {
    {
        std::unique_lock lock(waiting_mutex_);
        (void)platform->wait(lock, waiting_, options.timeout, [&] {
            const auto found = attempts_.find(key);
            return found == attempts_.end() || found->second.done;
        });
    }
    Attempt attempt = take_attempt(key, what);
    if (attempt.established()) {
        return std::move(attempt.event.private_data);
    }
    return executor_->run([&] { return conclude_here(attempt, handle, options, what); }, Executor::Patience::unlimited);
}

bool RuntimeState::has_outcome(const ConnectionKey& key) {
    const std::lock_guard lock(waiting_mutex_);
    const auto found = attempts_.find(key);
    return found == attempts_.end() || found->second.done;
}

void RuntimeState::drop_attempt_here(const ConnectionKey& key) noexcept {
    const std::lock_guard lock(waiting_mutex_);
    attempts_.erase(key);
}

// Ends the attempt now, even if it has no outcome yet.
std::vector<std::byte> RuntimeState::conclude_here(const ConnectionKey& key, QpHandle handle,
                                                   const ConnectOptions& options, const std::string& what) {
    Attempt attempt = take_attempt(key, what);
    return conclude_here(attempt, handle, options, what);
}

RuntimeState::Attempt RuntimeState::take_attempt(const ConnectionKey& key, const std::string& what) {
    const std::lock_guard lock(waiting_mutex_);
    const auto found = attempts_.find(key);
    if (found == attempts_.end()) {
        throw Error(ESHUTDOWN, fmt::format("{}: the runtime was stopped", what));
    }
    Attempt attempt = std::move(found->second);
    attempts_.erase(found);
    return attempt;
}

std::vector<std::byte> RuntimeState::conclude_here(Attempt& attempt, QpHandle handle, const ConnectOptions& options,
                                                   const std::string& what) {
    if (attempt.established()) {
        return std::move(attempt.event.private_data);
    }
    if (QpSlot* qp = find_qp(handle); qp != nullptr) {
        fail_connection_here(*qp);
    }
    if (!attempt.done) {
        throw Error(ETIMEDOUT, fmt::format("{}: not established within {} ms", what, options.timeout.count()));
    }
    throw Error(attempt.event.error, why_failed(what, attempt.event));
}

// The reason, and what the peer says: the private data of its rejection.
std::string RuntimeState::why_failed(const std::string& what, const ConnectEvent& event) {
    std::string_view said(reinterpret_cast<const char*>(event.private_data.data()), event.private_data.size());
    said = said.substr(0, said.find_last_not_of('\0') + 1);  // without padding
    return said.empty() ? fmt::format("{}: {}", what, event.text)
                        : fmt::format("{}: {}; it says {}", what, event.text, printable(said));
}

// Forgets a connection that was not established. If the QP is still in INIT, it may be used for another attempt.
void RuntimeState::fail_connection_here(QpSlot& qp) noexcept {
    qp.peer_flow = {};
    if (qp.connection != 0) {
        qp_of_connection_.erase({qp.device, qp.connection});
        devices_[qp.device]->connector->forget(std::exchange(qp.connection, 0));
    }
    if (!qp.moved || qp.qp == nullptr) {
        return;
    }
    qp.error_told = true;  // the failure of the connection tells it
    try {
        Transition error = to_state(IBV_QPS_ERR);
        modify_here(qp, error.attr, error.mask, QpState::error, Status::wr_flush_err);
    } catch (const std::exception& error) {
        log_of_qp(LogLevel::warning, with_owner(qp), "{}; its connection has failed", error.what());
    }
}

void RuntimeState::disconnect(QpHandle handle) {
    executor_->run([&] {
        QpSlot& qp = qp_slot(handle);
        if (qp.state == QpState::reset) {
            throw Error(EINVAL, fmt::format("queue pair {} is in RESET, from where it cannot go to ERR", qp.called()));
        }
        if (qp.connection != 0) {
            try {
                devices_[qp.device]->connector->disconnect(qp.connection);
            } catch (const Error& error) {
                log_debug("queue pair {}: {}; it is taken down on this side", qp.called(), error.what());
            }
        }
        // Without a connection by address, there is no connector that would report the end.
        const bool tell = qp.connection == 0 && !qp.disconnected;
        const std::uint32_t client = qp.client;
        const QpHandle own = qp.handle;
        const Undo tell_last([&]() noexcept {
            if (tell) {
                tell_of_qp_here(client, {.type = EventType::disconnected, .qp = own});
            }
        });
        qp.disconnected = true;
        qp.error_told = true;
        qp.moved = true;
        if (qp.qp == nullptr) {
            return;  // the queue pair is in error already, because its device was lost
        }
        Transition error = to_state(IBV_QPS_ERR);
        modify_here(qp, error.attr, error.mask, QpState::error, Status::wr_flush_err);
    });
}

void RuntimeState::forget_connection_here(QpSlot& qp) noexcept {
    qp.peer_flow = {};
    if (qp.connection == 0) {
        return;
    }
    Connector& connector = *devices_[qp.device]->connector;
    {
        // Who still waits for this connection learns that it has failed, by the event from new_attempt(), unless the
        // outcome is known already.
        if (Attempts::node_type begun = take_attempt_by_event(qp); !begun.empty()) {
            tell_outcome_here(std::move(begun.mapped()));
        }
        const std::lock_guard lock(waiting_mutex_);
        const auto waiting = attempts_.find({qp.device, qp.connection});
        if (waiting != attempts_.end()) {
            waiting->second.done = true;
        }
    }
    tell_waiting();
    try {
        connector.disconnect(qp.connection);  // so that the peer learns of the end now, and not by time-outs
    } catch (const std::exception& error) {
        log_debug("disconnecting queue pair {}: {}", qp.called(), error.what());
    }
    qp_of_connection_.erase({qp.device, qp.connection});
    connector.forget(std::exchange(qp.connection, 0));
}

// ---- Attempts that end with an event ----

void RuntimeState::begin_connect(QpHandle handle, const std::string& address, const ConnectOptions& options) {
    executor_->run([&] { begin_connect_here(handle, address, options, Report::by_event); });
}

void RuntimeState::begin_accept(std::uint32_t device, ConnectionId request, QpHandle handle, const FlowBlock& flow,
                                const ConnectOptions& options) {
    executor_->run([&] { begin_accept_here(device, request, handle, flow, options, Report::by_event); });
}

// Returns the queue pair's attempt that was begun and has no outcome yet, or an empty node.
RuntimeState::Attempts::node_type RuntimeState::take_attempt_by_event(const QpSlot& qp) noexcept {
    const std::lock_guard lock(waiting_mutex_);
    const auto found = attempts_.find({qp.device, qp.connection});
    if (found == attempts_.end() || found->second.report != Report::by_event) {
        return {};
    }
    return attempts_.extract(found);
}

void RuntimeState::expire_attempts_here() noexcept {
    const auto now = platform->now();
    if (now < next_expiry_) {
        return;
    }
    next_expiry_ = std::chrono::steady_clock::time_point::max();
    Attempts expired;
    {
        const std::lock_guard lock(waiting_mutex_);
        for (auto at = attempts_.begin(); at != attempts_.end();) {
            const auto attempt = at++;
            if (attempt->second.report != Report::by_event) {
                continue;
            }
            if (now >= attempt->second.deadline) {
                expired.insert(attempts_.extract(attempt));
            } else {
                next_expiry_ = std::min(next_expiry_, attempt->second.deadline);
            }
        }
    }
    for (auto& [key, attempt] : expired) {
        if (QpSlot* qp = find_qp(attempt.qp); qp != nullptr) {
            fail_connection_here(*qp);
        }
        attempt.event.error = ETIMEDOUT;
        attempt.event.text.assign("not established within its time limit");
        tell_outcome_here(std::move(attempt));
    }
}

// Whether an attempt to connect was begun and has no outcome yet.
bool RuntimeState::is_connecting_by_event(const QpSlot& qp) noexcept {
    const std::lock_guard lock(waiting_mutex_);
    const auto found = attempts_.find({qp.device, qp.connection});
    return found != attempts_.end() && found->second.report == Report::by_event;
}

void RuntimeState::require_not_connecting(const QpSlot& qp) {
    const std::lock_guard lock(waiting_mutex_);
    const auto found = attempts_.find({qp.device, qp.connection});
    if (found != attempts_.end() && !found->second.done) {
        throw Error(EBUSY,
                    fmt::format("queue pair {} is being connected: wait for the event, or cancel it", qp.called()));
    }
}

// ---- Listening ----

OpenedListener RuntimeState::listen(const std::string& address, const std::string& device_name, PrivateDataForm form) {
    return executor_->run([&] {
        DeviceSlot& device = device_slot(device_name);
        const ListenerId id = device.connector->listen(address, form);
        Undo take_back([&]() noexcept { device.connector->stop_listening(id); });
        OpenedListener listener{.id = id, .device = device.index, .address = device.connector->address_of(id)};
        const std::lock_guard lock(waiting_mutex_);
        requests_[{device.index, id}];
        take_back.keep();
        return listener;
    });
}

void RuntimeState::stop_listening(std::uint32_t device, ListenerId listener) noexcept {
    try {
        executor_->run(
            [&] {
                if (!running_.load()) {
                    return;
                }
                devices_[device]->connector->stop_listening(listener);
                std::unique_lock lock(waiting_mutex_);
                const auto ended = requests_.extract({device, listener});
                lock.unlock();
                if (!ended.empty()) {
                    for (const ConnectEvent& request : ended.mapped()) {
                        turn_away_here(device, request.connection);
                    }
                }
            },
            Executor::Patience::unlimited);
        tell_waiting();
    } catch (const std::exception& error) {
        log_error("ending a listener: {}", error.what());
    }
}

std::optional<IncomingConnection> RuntimeState::next_request(std::uint32_t device, ListenerId listener,
                                                             std::chrono::milliseconds timeout) {
    std::unique_lock lock(waiting_mutex_);
    const ListenerKey key{device, listener};
    const auto something = [&] {
        const auto found = requests_.find(key);
        return found == requests_.end() || !found->second.empty();
    };
    if (!platform->wait(lock, waiting_, timeout, something)) {
        return std::nullopt;
    }
    const auto found = requests_.find(key);
    if (found == requests_.end()) {
        throw Error(ESHUTDOWN, "the listener was closed, or the runtime stopped");
    }
    ConnectEvent event = std::move(found->second.front());
    found->second.pop_front();
    return IncomingConnection{.id = event.connection,
                              .peer = std::move(event.text),
                              .private_data = std::move(event.private_data),
                              .flow = event.flow,
                              .max_dest_rd_atomic = event.max_dest_rd_atomic};
}

void RuntimeState::reject(std::uint32_t device, ConnectionId request,
                          const std::vector<std::byte>& private_data) noexcept {
    try {
        require_private_data(private_data.size(), kRawRejectPrivateDataMax);
    } catch (const Error& error) {
        log_error("a rejection goes out without its private data: {}", error.what());
        return reject(device, request, {});
    }
    try {
        executor_->run(
            [&] {
                if (!running_.load()) {
                    return;
                }
                turn_away_here(device, request, private_data);
            },
            Executor::Patience::unlimited);
    } catch (const std::exception& error) {
        log_debug("rejecting a connection: {}", error.what());
    }
}

// If there is no memory for a rejection, forget() still notifies the peer.
void RuntimeState::turn_away_here(std::uint32_t device, ConnectionId request,
                                  std::span<const std::byte> private_data) noexcept {
    Connector& connector = *devices_[device]->connector;
    try {
        try {
            connector.reject(request, private_data);
        } catch (const Error& error) {
            if (error.code() != std::errc::message_size) {
                throw;
            }
            log_error("a rejection goes out without its private data: {}", error.what());
            connector.reject(request, {});
        }
    } catch (const std::exception& error) {
        log_debug("rejecting a connection: {}", error.what());
    }
    connector.forget(request);
}

// ---- Events ----

void RuntimeState::take_connect_events(DeviceSlot& device) {
    for (int taken = 0; taken < kEventsInJob && device.connector != nullptr; ++taken) {
        try {
            std::optional<ConnectEvent> event = device.connector->next_event();
            if (!event) {
                return;
            }
            on_connect_event(device, std::move(*event));
        } catch (const std::exception& error) {
            log_error("connections of device \"{}\": {}", device.config.name, error.what());
            return;
        }
    }
}

QpSlot* RuntimeState::qp_of_connection(std::uint32_t device, ConnectionId connection) noexcept {
    const auto found = qp_of_connection_.find({device, connection});
    return found != qp_of_connection_.end() ? qps_[found->second].get() : nullptr;
}

void RuntimeState::on_connect_event(DeviceSlot& device, ConnectEvent event) {
    switch (event.kind) {
        case ConnectEvent::Kind::request: take_request(device, std::move(event)); break;
        case ConnectEvent::Kind::withdrawn: drop_request(device, event.connection); break;
        case ConnectEvent::Kind::established:
            counters.connections.add();
            if (QpSlot* qp = qp_of_connection(device.index, event.connection); qp != nullptr) {
                POLLCORE_PROBE(qp_connected, qp->qp_num, qp->client);
                try {
                    start_flow_here(
                        *qp, event.flow.kind != FlowControl::off ? event.flow : std::exchange(qp->peer_flow, {}));
                } catch (const Error& error) {
                    event.kind = ConnectEvent::Kind::failed;
                    event.error = error.code().value();
                    event.text = error.what();
                } catch (const std::bad_alloc&) {
                    event.kind = ConnectEvent::Kind::failed;
                    event.error = ENOMEM;
                }
            }
            [[fallthrough]];
        case ConnectEvent::Kind::failed: {
            if (event.connection == 0) {  // about a request that could not be offered, or about the listener itself
                if (const std::optional<std::uint64_t> left_out = refused_requests_.take(platform->now())) {
                    log_warning("listening on device \"{}\": {}{}", device.config.name, event.text,
                                and_others(*left_out));
                }
                break;
            }
            end_attempt_here({device.index, event.connection}, std::move(event));
            break;
        }
        case ConnectEvent::Kind::disconnected: {
            counters.disconnections.add();
            if (event.error == ENODEV) {
                on_device_removed(device);
                break;
            }
            QpSlot* qp = qp_of_connection(device.index, event.connection);
            if (qp == nullptr) {
                break;
            }
            // The event comes last, so that the application finds the queue pair in error.
            const std::uint32_t client = qp->client;
            const QpHandle handle = qp->handle;
            const Undo tell_last(
                [&]() noexcept { tell_of_qp_here(client, {.type = EventType::disconnected, .qp = handle}); });
            if (std::exchange(qp->disconnected, true)) {
                break;  // this side has disconnected, and its QP is in error
            }
            Transition error = to_state(IBV_QPS_ERR);
            modify_here(*qp, error.attr, error.mask, QpState::error, Status::wr_flush_err);
            break;
        }
    }
    tell_waiting();
}

// Keeps the outcome for the thread that waits for it, or tells it to the application by an event.
void RuntimeState::end_attempt_here(const ConnectionKey& key, ConnectEvent&& event) {
    Attempts::node_type begun;
    {
        const std::lock_guard lock(waiting_mutex_);
        const auto found = attempts_.find(key);
        if (found == attempts_.end()) {
            return;
        }
        found->second.done = true;
        found->second.event = std::move(event);
        if (found->second.report == Report::by_event) {
            begun = attempts_.extract(found);
        }
    }
    if (begun.empty()) {
        return;
    }
    if (QpSlot* qp = find_qp(begun.mapped().qp); qp != nullptr && !begun.mapped().established()) {
        fail_connection_here(*qp);
    }
    tell_outcome_here(std::move(begun.mapped()));
}

void RuntimeState::take_request(DeviceSlot& device, ConnectEvent request) {
    const ConnectionId connection = request.connection;
    const ListenerHandle listener{.number = request.listener, .device = device.index};
    bool waits = false;
    {
        const std::lock_guard lock(waiting_mutex_);
        const auto found = requests_.find({device.index, request.listener});
        const bool listens = found != requests_.end();  // else the listener has just been closed
        waits = listens && found->second.size() < kListenerBacklogMax;
        try {
            if (waits) {
                found->second.push_back(std::move(request));
            }
        } catch (const std::bad_alloc&) {
            waits = false;
        }
        if (listens && !waits) {
            counters.requests_refused.add();
        }
    }
    if (!waits) {
        return turn_away_here(device.index, connection);
    }
    Event event{.type = EventType::connect_request, .listener = listener};
    if (host_ != nullptr) {
        host_->connection_event(0, Event(event));
    }
    application_events.keep(std::move(event));
}

// The peer has given up the request. If the application has taken the request already, the application's answer will
// fail.
void RuntimeState::drop_request(DeviceSlot& device, ConnectionId request) {
    std::size_t dropped = 0;
    {
        const std::lock_guard lock(waiting_mutex_);
        for (auto& [listener, waiting] : requests_) {
            if (listener.first == device.index) {
                dropped += std::erase_if(waiting,
                                         [request](const ConnectEvent& event) { return event.connection == request; });
            }
        }
    }
    if (dropped != 0) {
        device.connector->forget(request);
    }
}

void RuntimeState::look_for_withdrawn_requests_here() {
    const auto now = platform->now();
    if (now < next_look_at_requests_) {
        return;
    }
    next_look_at_requests_ = now + kLookAtRequestsEvery;
    for (const auto& device : devices_) {
        if (device->connector != nullptr) {
            device->connector->look_for_withdrawn_requests();
        }
    }
}

void RuntimeState::tell_waiting() {
    waiting_.notify_all();
    if (host_ != nullptr) {
        host_->connections_changed();
    }
}

}  // namespace pollcore
