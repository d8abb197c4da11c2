// Handles the events of devices, and reports that workers send without being asked.
#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/planted.hpp"
#include "base/probe.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {

// ---- Devices ----

namespace {

static_assert(static_cast<int>(EventType::cq_err) == IBV_EVENT_CQ_ERR);
static_assert(static_cast<int>(EventType::qp_fatal) == IBV_EVENT_QP_FATAL);
static_assert(static_cast<int>(EventType::qp_req_err) == IBV_EVENT_QP_REQ_ERR);
static_assert(static_cast<int>(EventType::qp_access_err) == IBV_EVENT_QP_ACCESS_ERR);
static_assert(static_cast<int>(EventType::comm_est) == IBV_EVENT_COMM_EST);
static_assert(static_cast<int>(EventType::sq_drained) == IBV_EVENT_SQ_DRAINED);
static_assert(static_cast<int>(EventType::path_mig) == IBV_EVENT_PATH_MIG);
static_assert(static_cast<int>(EventType::path_mig_err) == IBV_EVENT_PATH_MIG_ERR);
static_assert(static_cast<int>(EventType::device_fatal) == IBV_EVENT_DEVICE_FATAL);
static_assert(static_cast<int>(EventType::port_active) == IBV_EVENT_PORT_ACTIVE);
static_assert(static_cast<int>(EventType::port_err) == IBV_EVENT_PORT_ERR);
static_assert(static_cast<int>(EventType::lid_change) == IBV_EVENT_LID_CHANGE);
static_assert(static_cast<int>(EventType::pkey_change) == IBV_EVENT_PKEY_CHANGE);
static_assert(static_cast<int>(EventType::sm_change) == IBV_EVENT_SM_CHANGE);
static_assert(static_cast<int>(EventType::srq_err) == IBV_EVENT_SRQ_ERR);
static_assert(static_cast<int>(EventType::srq_limit_reached) == IBV_EVENT_SRQ_LIMIT_REACHED);
static_assert(static_cast<int>(EventType::qp_last_wqe_reached) == IBV_EVENT_QP_LAST_WQE_REACHED);
static_assert(static_cast<int>(EventType::client_reregister) == IBV_EVENT_CLIENT_REREGISTER);
static_assert(static_cast<int>(EventType::gid_change) == IBV_EVENT_GID_CHANGE);
static_assert(static_cast<int>(EventType::wq_fatal) == IBV_EVENT_WQ_FATAL);
static_assert(kVerbsEventTypes == IBV_EVENT_WQ_FATAL + 1);

/// The member of ibv_async_event::element that an event has.
enum class Element : std::uint8_t { qp, cq, srq, port, other };

Element element_of(ibv_event_type type) noexcept {
    switch (type) {
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_COMM_EST:
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
        case IBV_EVENT_PATH_MIG_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED: return Element::qp;
        case IBV_EVENT_CQ_ERR: return Element::cq;
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED: return Element::srq;
        case IBV_EVENT_PORT_ACTIVE:
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_LID_CHANGE:
        case IBV_EVENT_PKEY_CHANGE:
        case IBV_EVENT_SM_CHANGE:
        case IBV_EVENT_CLIENT_REREGISTER:
        case IBV_EVENT_GID_CHANGE: return Element::port;
        default: return Element::other;  // the device, or a work queue, which the runtime never makes
    }
}

/// Another process that has the context's descriptor makes objects there, too. It chooses the pointers that their
/// events contain. Returns true for an event of such an object: its pointer must not be followed, and it needs no
/// acknowledgement. `cq_worker` is the worker of the event's CQ, if the runtime has made it.
bool is_foreign(const ibv_async_event& taken, const Event& described, const WorkerSlot* cq_worker) noexcept {
    switch (element_of(taken.event_type)) {
        case Element::qp: return !described.qp.valid();
        case Element::cq: return cq_worker == nullptr;
        case Element::srq: return !described.srq.valid();
        case Element::port: return false;
        case Element::other: return taken.event_type == IBV_EVENT_WQ_FATAL;
    }
    return false;
}

}  // namespace

// Every event that is taken is acknowledged (I9), but only after it was handled. Until then the event's object cannot
// be destroyed. The application gets the event last, when everything is as the event says.
void RuntimeState::take_async_events(DeviceSlot& device) {
    // The event loop calls again if there are more.
    constexpr int kEventsInTurn = 64;
    for (int turn = 0; turn < kEventsInTurn && device.device != nullptr; ++turn) {
        std::optional<ibv_async_event> taken;
        try {
            taken = device.device->next_async_event();
        } catch (const std::bad_alloc&) {
            return;  // the device still has the event
        } catch (const Error& error) {
            if (!device.removed) {  // else the error is expected
                log_error("asynchronous events of device \"{}\": {}", device.config.name, error.what());
            }
            if (error.code() == std::errc::io_error) {  // the kernel has given up the device
                loop_->forget(device.device->async_fd());
                on_device_removed(device);
            }
        }
        if (!taken) {
            return;
        }
        counters.async_events.add();
        if (taken->event_type < counters.async_events_by_type.size()) {
            counters.async_events_by_type[taken->event_type].add();
        }
        // The description contains only handles and numbers, which need no memory: an event that was taken must be
        // handled.
        const Event event = describe(device, *taken);
        const WorkerSlot* const whose_cq =
            taken->event_type == IBV_EVENT_CQ_ERR ? worker_of_cq(device, taken->element.cq) : nullptr;
        if (device.client != 0 && is_foreign(*taken, event, whose_cq)) {
            continue;
        }
        try {
            on_async_event(device, *taken, event);
        } catch (const std::exception& error) {
            log_error("device \"{}\": {}: {}", device.config.name, event_type_name(event.type), error.what());
        }
        if (planted(Bug::unacknowledged)) {
            return;
        }
        device.device->acknowledge(*taken);
        counters.async_events_acknowledged.add();
        if (taken->event_type == IBV_EVENT_CQ_ERR) {
            lose_cq(taken->element.cq);  // destroys the CQ, so the event had to be acknowledged first
        }
        tell_application(event, device, whose_cq);
    }
}

// Describes what the event concerns, by the application's handles. The names of device and worker are added later.
// Called before anything is done about the event, because the event's object must exist. Compares the event's pointer
// only, because the pointer may be foreign (is_foreign()).
Event RuntimeState::describe(const DeviceSlot& device, const ibv_async_event& taken) const noexcept {
    Event event{.type = static_cast<EventType>(taken.event_type)};
    switch (element_of(taken.event_type)) {
        case Element::qp:
            for (const auto& qp : qps_) {
                if (qp != nullptr && qp->device == device.index && qp->qp.get() == taken.element.qp) {
                    event.qp = qp->handle;
                }
            }
            break;
        case Element::srq:
            for (const auto& srq : srqs_) {
                if (srq != nullptr && srq->device == device.index && srq->srq.get() == taken.element.srq) {
                    event.srq = srq->handle;
                }
            }
            break;
        case Element::port: event.port = static_cast<std::uint8_t>(taken.element.port_num); break;
        case Element::cq:  // applications do not see CQs
        case Element::other: break;
    }
    return event;
}

const WorkerSlot* RuntimeState::worker_of_cq(const DeviceSlot& device, const ibv_cq* verbs_cq) const noexcept {
    const auto has_it = [&](const auto& worker) {
        return std::any_of(worker->cqs.begin(), worker->cqs.end(), [&](const auto& cq) {
            return cq != nullptr && cq->device == device.index && cq->cq.get() == verbs_cq;
        });
    };
    const auto found = std::find_if(workers_.begin(), workers_.end(), has_it);
    return found != workers_.end() ? found->get() : nullptr;
}

void RuntimeState::on_async_event(DeviceSlot& device, const ibv_async_event& taken, const Event& event) {
    const std::string_view text = event_type_name(event.type);
    QpSlot* const qp = find_qp(event.qp);
    const std::optional<QpAndOwner> concerned = qp != nullptr ? std::optional(with_owner(*qp)) : std::nullopt;
    switch (taken.event_type) {
        // A peer causes the first two events. They say why this side's QP has failed.
        case IBV_EVENT_QP_ACCESS_ERR:
            log_of_qp(LogLevel::warning, concerned, "{}", text);
            fail_qp(taken.element.qp, Status::loc_access_err);
            break;
        case IBV_EVENT_QP_REQ_ERR:
            log_of_qp(LogLevel::warning, concerned, "{}", text);
            fail_qp(taken.element.qp, Status::rem_inv_req_err);
            break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_PATH_MIG_ERR:
            log_of_qp(LogLevel::error, concerned, "{}", text);
            fail_qp(taken.element.qp, Status::fatal_err);
            break;
        case IBV_EVENT_COMM_EST: device.connector->communication_established(taken.element.qp->qp_num); break;
        case IBV_EVENT_QP_LAST_WQE_REACHED:
            if (qp != nullptr) {
                qp->last_wqe_reached = true;
            }
            [[fallthrough]];
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
            log_debug("device \"{}\": queue pair {}: {}", device.config.name,
                      qp != nullptr ? qp->called() : Called{taken.element.qp->qp_num}, text);
            break;
        case IBV_EVENT_CQ_ERR:
            if (const auto left_out = cq_errors_.take(platform->now())) {
                log_error("device \"{}\": a completion queue overran ({}){}", device.config.name, text,
                          and_others(*left_out));
            }
            break;
        case IBV_EVENT_SRQ_LIMIT_REACHED: log_debug("device \"{}\": {}", device.config.name, text); break;
        case IBV_EVENT_DEVICE_FATAL: lose_device(device); break;
        case IBV_EVENT_PORT_ACTIVE:
        case IBV_EVENT_PORT_ERR: log_warning("device \"{}\" port {}: {}", device.config.name, event.port, text); break;
        default: log_warning("device \"{}\": {}", device.config.name, text); break;
    }
}

QpAndOwner RuntimeState::with_owner(const QpSlot& qp) const noexcept {
    return {.qp_num = qp.qp_num, .name = qp.name, .client = qp.client};
}

void RuntimeState::log_line_of_qp(LogLevel level, const std::optional<QpAndOwner>& which, fmt::string_view what,
                                  fmt::format_args args) noexcept {
    LineBudget& budget = level == LogLevel::error ? qp_errors_ : qp_warnings_;
    const std::optional<std::uint64_t> left_out = budget.take(platform->now());
    if (!left_out) {
        return;
    }
    try {
        const std::string named = !which ? "a queue pair that is being closed"
                                  : which->client == 0
                                      ? fmt::format("queue pair {} of this process", which->called())
                                      : fmt::format("queue pair {} of client {}", which->called(), which->client);
        log_detail::log(level, "{}: {}{}", named, fmt::vformat(what, args), and_others(*left_out));
    } catch (const std::bad_alloc&) {
        log_detail::count_lost(1);
        log_detail::report_lost(1);
    }
}

// Adds the names of device and worker. If there is no memory for the event, the event is lost, as it is if the queue is
// full.
void RuntimeState::tell_application(Event event, const DeviceSlot& device, const WorkerSlot* worker) noexcept {
    try {
        event.device = device.client != 0 ? device.shared_name : device.config.name;
        if (worker != nullptr) {
            event.worker = worker->config.name;
        }
        if (host_ != nullptr) {
            host_->event(event, device.client);
        }
        if (device.client != 0) {
            return;  // the application has the device's own events
        }
        if (application_events.push(std::move(event))) {
            return;
        }
    } catch (const std::exception& error) {
        log_error("device \"{}\": {}: {}", device.config.name, event_type_name(event.type), error.what());
        application_events.lose();
    }
    counters.events_lost.add();
}

// ---- Events of connections ----

void RuntimeState::tell_of_qp_here(std::uint32_t client, Event&& event) noexcept {
    if (client == 0) {
        application_events.keep(std::move(event));
    } else if (host_ != nullptr) {
        host_->connection_event(client, std::move(event));
    }
}

// Called when the queue pair is in error, and its application may not have caused that.
void RuntimeState::tell_of_error_here(QpSlot& qp) noexcept {
    if (!qp.disconnected && !qp.ending && !std::exchange(qp.error_told, true)) {
        POLLCORE_PROBE(qp_error, qp.qp_num, qp.client);
        tell_of_qp_here(qp.client, {.type = EventType::qp_error, .qp = qp.handle});
    }
}

void RuntimeState::tell_outcome_here(Attempt&& attempt) noexcept {
    Event event{.type = EventType::established, .qp = attempt.qp};
    if (!attempt.established()) {
        event.type = EventType::connect_failed;
        event.error = attempt.event.error;
        try {
            event.text = why_failed(attempt.what, attempt.event);
        } catch (const std::bad_alloc&) {
            event.text = std::move(attempt.what);
        }
    }
    event.private_data = std::move(attempt.event.private_data);
    tell_of_qp_here(attempt.client, std::move(event));
}

// ---- What is lost ----

void RuntimeState::on_device_removed(DeviceSlot& device) {
    lose_device(device);
    if (!std::exchange(device.removed, true)) {  // each of the device's connections may report the removal
        tell_application({.type = EventType::device_removed}, device);
    }
}

// Nothing more comes from a lost device, so nobody waits for the device. The slots of its queue pairs (in error),
// shared receive queues and address handles stay until the application ends them. Workers, sessions and other devices
// go on.
void RuntimeState::lose_device(DeviceSlot& device) {
    if (device.lost) {
        return;  // reported twice
    }
    device.lost = true;
    counters.devices_lost.add();
    POLLCORE_PROBE(device_lost, device.index + 1);
    log_error("device \"{}\" is lost: it failed or was removed; its work in flight is completed by the runtime",
              device.config.name);
    for (const auto& qp : qps_) {
        if (qp == nullptr || qp->device != device.index || qp->qp == nullptr) {
            continue;
        }
        try {
            lose_qp_here(*qp);
        } catch (const std::exception& error) {
            log_error("queue pair {} of a lost device: {}", qp->called(), error.what());
        }
    }
    for (const auto& srq : srqs_) {
        if (srq == nullptr || srq->device != device.index || srq->srq == nullptr) {
            continue;
        }
        try {
            lose_srq_here(*srq);
        } catch (const std::exception& error) {
            log_error("shared receive queue {} of a lost device: {}", srq->handle.index, error.what());
        }
    }
    lose_cqs_here(device);
}

// A CQ that raises no more events would keep its worker awake. So CQs without queues are removed. The worker does not
// touch CQs with queues until their last queue pair is closed. But if the provider did not destroy one of a CQ's QPs,
// the CQ stays in use.
void RuntimeState::lose_cqs_here(const DeviceSlot& device) {
    for (const auto& worker : workers_) {
        for (std::uint32_t i = 0; i < worker->cqs.size(); ++i) {
            const CqSlot* cq = worker->cqs[i].get();
            const auto is_kept = [&](const auto& qp) {
                return qp != nullptr && qp->qp != nullptr && workers_[qp->worker] == worker &&
                       (qp->send_cq == i || qp->recv_cq == i);
            };
            if (cq == nullptr || cq->device != device.index || std::any_of(qps_.begin(), qps_.end(), is_kept)) {
                continue;
            }
            if (cq->queues == 0) {
                worker->proxy->remove_cq(i);
                worker->cqs[i].reset();
            } else {
                worker->proxy->lose_cq(i);
            }
        }
    }
}

// Returns whether the device is lost. Called after the error EIO, because the event that reports the loss may not have
// been taken yet. If the device turns out to be lost, this function calls lose_device().
bool RuntimeState::lost_meanwhile(DeviceSlot& device) {
    if (!device.lost) {
        try {
            (void)device.device->query_port();
        } catch (const Error& error) {
            if (error.code() == std::errc::io_error) {
                lose_device(device);
            }
        }
    }
    return device.lost;
}

void RuntimeState::lose_qp_here(QpSlot& qp) {
    WorkerProxy& worker = *workers_[qp.worker]->proxy;
    forget_connection_here(qp);
    worker.park(qp.handle);
    worker.unpark(qp.handle, QpState::error, Status::device_removed);
    qp.state = QpState::error;
    // No flush will come. But the completions in the CQs are valid, and some providers remove them when the QP is
    // destroyed. So the worker takes them before.
    (void)worker.retire(qp.handle, 0, std::chrono::milliseconds(0));
    worker.park(qp.handle);
    destroy_verbs_qp(qp, Status::device_removed);
    worker.lose(qp.handle);
    worker.ignore(qp.retire_command);
}

// Replaces an overrun CQ: it has lost completions, even if it can still be polled.
void RuntimeState::lose_cq(const ibv_cq* verbs_cq) {
    for (const auto& worker : workers_) {
        for (std::uint32_t i = 0; i < worker->cqs.size(); ++i) {
            if (worker->cqs[i] != nullptr && worker->cqs[i]->cq.get() == verbs_cq) {
                replace_cq(*worker, i);
                return;
            }
        }
    }
}

void RuntimeState::fail_qp(const ibv_qp* verbs_qp, Status cause) {
    for (const auto& qp : qps_) {
        if (qp != nullptr && qp->qp.get() == verbs_qp) {
            // The device has moved the QP to ERR. The worker may not know, so tell it.
            workers_[qp->worker]->proxy->park(qp->handle);
            workers_[qp->worker]->proxy->unpark(qp->handle, QpState::error, cause);
            qp->state = QpState::error;
            tell_of_error_here(*qp);
            return;
        }
    }
}

// ---- Workers ----

void RuntimeState::take_worker_reports() {
    for (const auto& worker : workers_) {
        worker->worker->failed_qps().take([&](std::uint16_t index) {
            if (const auto& qp = qps_[index]; qp != nullptr && workers_[qp->worker] == worker) {
                tell_of_error_here(*qp);
            }
        });
        for (const Answer& said : worker->proxy->take_unasked()) {
            try {
                if (said.kind == AnswerKind::cq_failed) {
                    // Check that this CQ still has to be replaced: the device may have reported it before, another CQ
                    // may have its index by now, and after a stop there are no CQs (D46).
                    const CqSlot* cq = said.index < worker->cqs.size() ? worker->cqs[said.index].get() : nullptr;
                    if (cq != nullptr && cq->end->options().id == said.object_id && !cq->failed) {
                        const DeviceSlot& device = *devices_[cq->device];
                        replace_cq(*worker, said.index);
                        tell_application({.type = EventType::cq_err}, device, worker.get());
                    }
                } else if (said.kind == AnswerKind::session_broken) {
                    const std::uint32_t id = said.object_id;
                    if (host_ != nullptr && host_->session_broken(id)) {
                        continue;
                    }
                    log_error("session {} of worker \"{}\" wrote something that no session writes; it is closed",
                              called_session(id), worker->config.name);
                    close_session_here(id, platform->now() + config.drain_timeout);
                } else if (said.kind == AnswerKind::flow_failed) {
                    fail_flow_here(*worker, said.index, static_cast<std::uint16_t>(said.object_id >> 8),
                                   static_cast<FlowFault>(said.object_id & 0xff));
                }
            } catch (const std::exception& error) {
                log_error("worker \"{}\": {}", worker->config.name, error.what());
            }
        }
    }
}

// The CQ has lost completions, or returns no more. So its queue pairs are destroyed; after that the runtime can
// complete their work in flight. New queue pairs get another CQ (D46).
void RuntimeState::replace_cq(WorkerSlot& worker, std::uint32_t index) {
    CqSlot* cq = worker.cqs[index].get();
    if (cq == nullptr || cq->failed) {
        return;  // reported before: both the device and the worker may report a CQ
    }
    cq->failed = true;
    counters.failed_cqs.add();
    if (const auto left_out = cq_errors_.take(platform->now())) {
        log_error("worker \"{}\": completion queue {} is of no more use; its queue pairs are closed{}",
                  worker.config.name, index, and_others(*left_out));
    }
    bool all = true;
    for (const auto& qp : qps_) {
        if (qp == nullptr || workers_[qp->worker].get() != &worker || (qp->send_cq != index && qp->recv_cq != index)) {
            continue;
        }
        const QpAndOwner which = with_owner(*qp);
        try {
            forget_connection_here(*qp);
            const bool told = qp->disconnected || qp->ending || qp->error_told;
            const QpHandle handle = qp->handle;
            const std::uint32_t client = qp->client;
            destroy_qp_here(*qp, Status::fatal_err);
            if (!told) {
                tell_of_qp_here(client, {.type = EventType::qp_error, .qp = handle});
            }
        } catch (const std::exception& error) {
            log_error("queue pair {} of a failed completion queue: {}", which.called(), error.what());
            all = false;
        }
    }
    if (all && worker.cqs[index] != nullptr) {
        worker.proxy->remove_cq(index);
        worker.cqs[index].reset();
    }
}

}  // namespace pollcore
