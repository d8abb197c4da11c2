// What devices and workers say without being asked.
#include "base/log.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {

// Every event that is taken is acknowledged (I9), after what it concerns was dealt with: the object cannot be
// destroyed meanwhile.
void RuntimeState::take_async_events(DeviceSlot& device) {
    try {
        while (device.device != nullptr) {
            const std::optional<ibv_async_event> event = device.device->next_async_event();
            if (!event) {
                return;
            }
            counters.async_events.add();
            const char* text = ibv_event_type_str(event->event_type);
            switch (event->event_type) {
                case IBV_EVENT_QP_FATAL:
                case IBV_EVENT_QP_REQ_ERR:
                case IBV_EVENT_QP_ACCESS_ERR:
                case IBV_EVENT_PATH_MIG_ERR:
                    fail_qp(event->element.qp, text);
                    break;
                case IBV_EVENT_COMM_EST:
                    device.connector->communication_established(event->element.qp->qp_num);
                    break;
                case IBV_EVENT_SQ_DRAINED:
                case IBV_EVENT_PATH_MIG:
                case IBV_EVENT_QP_LAST_WQE_REACHED:
                    log_debug("device \"{}\": queue pair {}: {}", device.config.name, event->element.qp->qp_num, text);
                    break;
                case IBV_EVENT_CQ_ERR:
                    log_error("device \"{}\": a completion queue overran ({}); completions of its queue pairs may be lost",
                              device.config.name, text);
                    break;
                default:
                    log_warning("device \"{}\": {}", device.config.name, text);
                    break;
            }
            device.device->acknowledge(*event);
        }
    } catch (const std::exception& error) {
        log_error("asynchronous events of device \"{}\": {}", device.config.name, error.what());
    }
}

void RuntimeState::fail_qp(const ibv_qp* verbs_qp, const char* event) {
    for (const auto& qp : qps_) {
        if (qp != nullptr && qp->qp.get() == verbs_qp) {
            log_error("queue pair {}: {}", verbs_qp->qp_num, event);
            // The device has moved it to ERR; the worker learns of it here if no completion told it yet.
            workers_[qp->worker]->proxy->park(qp->handle);
            workers_[qp->worker]->proxy->unpark(qp->handle, QpState::error, Status::fatal_err);
            qp->state = QpState::error;
            return;
        }
    }
}

void RuntimeState::take_worker_reports() {
    for (const auto& worker : workers_) {
        for (const Answer& said : worker->proxy->take_unasked()) {
            try {
                if (said.kind == AnswerKind::cq_failed) {
                    replace_cq(*worker, said.index);
                } else if (said.kind == AnswerKind::session_broken) {
                    const std::uint32_t id = worker->sessions.at(said.index);
                    log_error("session {} of worker \"{}\" wrote what no session writes; it is closed", id,
                              worker->config.name);
                    close_session_here(id, std::chrono::steady_clock::now() + config.drain_timeout);
                }
            } catch (const std::exception& error) {
                log_error("worker \"{}\": {}", worker->config.name, error.what());
            }
        }
    }
}

// Polling a CQ failed for good. Nothing more comes out of it, so its queue pairs are destroyed, which lets the
// runtime complete what they had in flight; new ones get another CQ.
void RuntimeState::replace_cq(WorkerSlot& worker, std::uint32_t index) {
    log_error("worker \"{}\": polling completion queue {} failed; its queue pairs are closed", worker.config.name, index);
    for (std::size_t i = 0; i < qps_.size(); ++i) {
        QpSlot* qp = qps_[i].get();
        if (qp != nullptr && workers_[qp->worker].get() == &worker && (qp->send_cq == index || qp->recv_cq == index)) {
            forget_connection_here(*qp);
            destroy_qp_here(*qp);
        }
    }
    worker.proxy->remove_cq(index);
    worker.cqs[index].reset();
}

}  // namespace pollcore
