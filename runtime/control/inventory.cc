#include "control/inventory.hpp"

#include <algorithm>
#include <string_view>

#include "control/runtime_state.hpp"

namespace pollcore {

std::string_view qp_type_name(QpType type) noexcept {
    switch (type) {
        case QpType::rc: return "RC";
        case QpType::uc: return "UC";
        case QpType::ud: return "UD";
    }
    return "?";
}

std::string_view qp_state_name(QpState state) noexcept {
    switch (state) {
        case QpState::reset: return "RESET";
        case QpState::init: return "INIT";
        case QpState::ready: return "RTS";
        case QpState::error: return "ERR";
        case QpState::closed: return "closed";
    }
    return "?";
}

std::vector<ListedWorker> RuntimeState::workers_here() const {
    std::vector<ListedWorker> all;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        const WorkerSlot& worker = *workers_[i];
        const auto there = [](const auto& slot) { return slot != nullptr; };
        all.push_back({.name = worker.config.name,
                       .core = worker.config.core,
                       .thread = worker.thread != nullptr ? worker.thread->thread_id() : 0,
                       .sessions = static_cast<std::uint64_t>(std::count_if(
                           worker.sessions.begin(), worker.sessions.end(), [](auto id) { return id != 0; })),
                       .queue_pairs = static_cast<std::uint64_t>(std::count_if(
                           qps_.begin(), qps_.end(), [&](const auto& qp) { return qp != nullptr && qp->worker == i; })),
                       .completion_queues =
                           static_cast<std::uint64_t>(std::count_if(worker.cqs.begin(), worker.cqs.end(), there))});
    }
    return all;
}

std::vector<ListedDevice> RuntimeState::devices_here() const {
    std::vector<ListedDevice> all;
    for (const auto& device : devices_) {
        if (device->device != nullptr) {
            all.push_back({.name = device->client != 0 ? device->shared_name : device->config.name,
                           .description = device->description,
                           .process = device->client,
                           .lost = device->lost});
        }
    }
    return all;
}

const std::string& RuntimeState::device_name_here(std::uint32_t device) const noexcept {
    const DeviceSlot& slot = *devices_[device];
    return slot.client != 0 ? slot.shared_name : slot.config.name;
}

std::uint32_t RuntimeState::process_of_session_here(std::uint32_t session) const noexcept {
    const auto found = sessions_.find(session);
    return found != sessions_.end() && found->second.client != nullptr ? found->second.client->id() : 0;
}

std::vector<ListedSession> RuntimeState::sessions_here() const {
    std::vector<ListedSession> all;
    for (const auto& [number, session] : sessions_) {
        all.push_back({.number = number,
                       .name = session.name,
                       .worker = workers_[session.worker]->config.name,
                       .process = process_of_session_here(number),
                       .submission_slots = session.layout.submission_slots,
                       .completion_slots = session.layout.completion_slots,
                       .bytes = session.layout.bytes()});
    }
    return all;
}

std::vector<ListedQueuePair> RuntimeState::queue_pairs_here() const {
    std::vector<ListedQueuePair> all;
    for (const auto& qp : qps_) {
        if (qp == nullptr) {
            continue;
        }
        const WorkerSlot& worker = *workers_[qp->worker];
        std::uint32_t session = 0;
        if (qp->end != nullptr && !qp->end->options().shares.empty()) {
            session = worker.sessions.at(qp->end->options().shares.front().session);
        }
        all.push_back({.qp_num = qp->qp_num,
                       .handle = qp->handle,
                       .name = qp->name,
                       .device = device_name_here(qp->device),
                       .worker = worker.config.name,
                       .session = session,
                       .process = qp->client,
                       .type = qp->type,
                       .state = qp->state,
                       .flow = qp->flow});
    }
    return all;
}

std::vector<ListedSharedReceiveQueue> RuntimeState::shared_receive_queues_here() const {
    std::vector<ListedSharedReceiveQueue> all;
    for (const auto& srq : srqs_) {
        if (srq != nullptr) {
            all.push_back({.number = srq->handle.index,
                           .device = device_name_here(srq->device),
                           .session = srq->session,
                           .process = process_of_session_here(srq->session),
                           .depth = srq->depth,
                           .queue_pairs = srq->qps});
        }
    }
    return all;
}

std::vector<ListedReceivePool> RuntimeState::receive_pools_here() const {
    std::vector<ListedReceivePool> all;
    for (std::size_t i = 0; i < pools_.size(); ++i) {
        if (const PoolSlot* const pool = pools_[i].get(); pool != nullptr) {
            all.push_back({.number = static_cast<std::uint32_t>(i),
                           .device = device_name_here(pool->device),
                           .session = pool->session,
                           .process = process_of_session_here(pool->session),
                           .ring = pool->ring != nullptr,
                           .queues = pool->takers});
        }
    }
    return all;
}

std::vector<ListedListener> RuntimeState::listeners_here() {
    std::vector<ListedListener> all;
    const std::lock_guard lock(waiting_mutex_);
    for (const auto& [listener, waiting] : requests_) {
        const auto& [device, number] = listener;
        std::string address;
        try {
            if (devices_[device]->connector != nullptr) {
                address = devices_[device]->connector->address_of(number);
            }
        } catch (const Error&) {
            address.clear();
        }
        if (address.empty()) {
            continue;  // the listener has ended with its device
        }
        all.push_back({.number = number,
                       .device = device_name_here(device),
                       .address = std::move(address),
                       .process = host_ != nullptr ? host_->owner_of_listener(device, number) : 0,
                       .waiting = waiting.size()});
    }
    return all;
}

std::vector<ListedMemoryRegion> RuntimeState::memory_regions_here() const {
    std::vector<ListedMemoryRegion> all;
    for (const auto& [number, region] : regions_) {
        const auto pd = pds_.find(region.pd);
        if (region.mr != nullptr && pd != pds_.end()) {
            all.push_back({.number = number,
                           .device = device_name_here(pd->second.device),
                           .process = pd->second.client,
                           .bytes = region.mr->length});
        }
    }
    return all;
}

}  // namespace pollcore
