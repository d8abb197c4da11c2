// Chooses the CQ of each queue, and reserves entries in it: a CQ has room for everything that may be outstanding on it
// (I3).
#include <algorithm>

#include <fmt/format.h>

#include "control/runtime_state.hpp"

namespace pollcore {

namespace {

std::uint32_t next_vector(const WorkerSlot& worker, DeviceSlot& device) {
    return worker.config.comp_vector.value_or(device.next_vector++ % device.device->limits().comp_vectors);
}

}  // namespace

// Finds a CQ with room for everything that may be outstanding. If all are full, the worker gets another CQ. All
// receives of an SRQ may complete on one CQ. So the SRQ's depth is reserved there once, however many of the SRQ's queue
// pairs use that CQ (H4, D21). A CQ with time stamps is only for queue pairs with `device_time` (D37).
std::uint32_t RuntimeState::choose_cq(WorkerSlot& worker, DeviceSlot& device, std::uint32_t entries, const SrqSlot* srq,
                                      bool device_time, std::optional<std::uint32_t> other_than) {
    const std::uint32_t with_srq = entries + (srq != nullptr ? srq->depth : 0);
    if (with_srq > worker.config.cq_depth) {
        throw Error(EINVAL, fmt::format("the queue pair may have {} work requests outstanding on one CQ, and worker "
                                        "\"{}\" opens CQs of cq_depth = {}; raise cq_depth or ask for less",
                                        with_srq, worker.config.name, worker.config.cq_depth));
    }
    std::optional<std::uint32_t> fits;
    for (std::uint32_t i = 0; i < worker.cqs.size(); ++i) {
        const CqSlot* cq = worker.cqs[i].get();
        if (cq == nullptr || cq->failed || cq->device != device.index || cq->device_time != device_time ||
            i == other_than) {
            continue;
        }
        const std::uint32_t room = cq->capacity - cq->reserved;
        if (srq != nullptr && cq->srqs.contains(srq->handle.index) && room >= entries) {
            return i;
        }
        if (!fits && room >= with_srq) {
            fits = i;
        }
    }
    if (fits) {
        return *fits;
    }
    auto slot = std::make_unique<CqSlot>();
    slot->device = device.index;
    const DeviceLimits& limits = device.device->limits();
    // If the device allows it, the CQ is as deep as an ordinary CQ and the SRQ together. Otherwise an SRQ that is
    // nearly as deep as a CQ would need one CQ for each of its queue pairs, and a worker looks at all CQs in every
    // step.
    slot->capacity = std::min(worker.config.cq_depth + (srq != nullptr ? srq->depth : 0), limits.cqes_max);
    slot->device_time = device_time;
    const bool shared = device.client != 0;
    // A shared CQ needs the QP number of each completion, which only ibv_poll_cq has at no extra cost.
    const PollChoice poll =
        choose_poll(shared ? PollVerbs::plain : worker.config.poll, limits.extended_cqs, limits.poll, device_time);
    const auto channel = device.channels.find(worker_index(worker));
    const bool events = channel != device.channels.end();
    slot->cq = UniqueCq(device.device->create_cq({.cqe = slot->capacity,
                                                  .domain = device.domains.at(worker_index(worker)).get(),
                                                  .channel = events ? channel->second->verbs() : nullptr,
                                                  .comp_vector = events ? next_vector(worker, device) : 0,
                                                  .extended = poll.extended,
                                                  .device_time = device_time}),
                        {device.device.get()});
    if (worker.config.moderation_count > 1) {
        device.device->moderate(slot->cq.get(), static_cast<std::uint16_t>(worker.config.moderation_count),
                                static_cast<std::uint16_t>(worker.config.moderation_period.count()));
    }
    slot->end =
        std::make_unique<WorkerCq>(WorkerCq::Options{.cq = slot->cq.get(),
                                                     .extended = poll.extended ? extended(slot->cq.get()) : nullptr,
                                                     .next_poll = limits.next_poll,
                                                     .device_time = device_time,
                                                     .shared = shared,
                                                     .id = next_cq_++,
                                                     .depth = static_cast<std::uint32_t>(slot->cq->cqe),
                                                     .channel = events ? channel->second.get() : nullptr});
    if (device.polls_logged.insert({worker_index(worker), device_time}).second) {
        log_info("worker {} polls its completion queues {}on {} by {}: {}{}", worker.config.name,
                 device_time ? "with time stamps " : "", device.device->describe(),
                 poll.extended ? "ibv_start_poll" : "ibv_poll_cq",
                 worker.config.poll == PollVerbs::automatic && !device_time ? "poll = \"auto\", and " : "", poll.why);
    }
    const auto empty = std::find(worker.cqs.begin(), worker.cqs.end(), nullptr);
    const auto index = static_cast<std::uint32_t>(empty - worker.cqs.begin());
    if (empty == worker.cqs.end()) {
        worker.cqs.emplace_back();
    }
    worker.proxy->add_cq(index, *slot->end);
    worker.cqs[index] = std::move(slot);
    return index;
}

void RuntimeState::reserve_entries(const QpSlot& qp) {
    WorkerSlot& worker = *workers_[qp.worker];
    CqSlot& send_cq = *worker.cqs[qp.send_cq];
    CqSlot& recv_cq = *worker.cqs[qp.recv_cq];
    if (qp.srq != nullptr) {
        if (recv_cq.srqs[qp.srq->handle.index]++ == 0) {  // may allocate, so this comes first
            recv_cq.reserved += qp.srq->depth;
        }
        ++qp.srq->qps;
    }
    ++send_cq.queues;
    ++recv_cq.queues;
    send_cq.reserved += qp.send_entries;
    recv_cq.reserved += qp.recv_entries;
}

void RuntimeState::release_entries(const QpSlot& qp) {
    WorkerSlot& worker = *workers_[qp.worker];
    CqSlot& send_cq = *worker.cqs[qp.send_cq];
    CqSlot& recv_cq = *worker.cqs[qp.recv_cq];
    --send_cq.queues;
    --recv_cq.queues;
    send_cq.reserved -= qp.send_entries;
    recv_cq.reserved -= qp.recv_entries;
    if (qp.srq != nullptr) {
        --qp.srq->qps;
        if (const auto here = recv_cq.srqs.find(qp.srq->handle.index); --here->second == 0) {
            recv_cq.srqs.erase(here);
            recv_cq.reserved -= qp.srq->depth;
        }
    }
}

// A worker polls all its CQs, and arms each of them before it sleeps. So a CQ without queues is destroyed. But the
// worker's last CQ on a device stays for the next queue pair, unless the CQ or the device has failed. A CQ with time
// stamps does not stay, because few queue pairs want one.
void RuntimeState::close_idle_cqs(WorkerSlot& worker, const DeviceSlot& device) {
    const auto is_of_use = [&](const auto& cq) {
        return cq != nullptr && cq->device == device.index && !cq->failed && !cq->device_time && !device.lost;
    };
    auto left = std::count_if(worker.cqs.begin(), worker.cqs.end(), is_of_use);
    for (std::uint32_t index = 0; index < worker.cqs.size(); ++index) {
        std::unique_ptr<CqSlot>& cq = worker.cqs[index];
        if (cq == nullptr || cq->device != device.index || cq->queues != 0) {
            continue;
        }
        if (is_of_use(cq)) {
            if (left == 1) {
                continue;
            }
            --left;
        }
        worker.proxy->remove_cq(index);
        cq.reset();
    }
}

}  // namespace pollcore
