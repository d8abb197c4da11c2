// Makes and ends shared receive queues, and handles their limit.
#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

std::uint16_t generation_after(std::uint16_t generation) {
    const auto next = static_cast<std::uint16_t>(generation + 1);
    return next == 0 ? std::uint16_t{1} : next;
}

}  // namespace

SrqHandle RuntimeState::create_srq(const SrqSpec& spec) {
    return executor_->run([&] { return create_srq_here(spec); });
}

SrqHandle RuntimeState::create_srq_here(const SrqSpec& spec) {
    DeviceSlot& device = device_slot(spec.device.string());
    const std::uint32_t sges_max = std::max(spec.sges_max, 1u);
    if (spec.depth < 1 || spec.depth > kQueueDepthMax || sges_max > kSgesMax) {
        throw Error(EINVAL,
                    fmt::format("depth = {}, sges_max = {} of a shared receive queue: accepted is a depth of 1 to {}, "
                                "and up to {} SGEs",
                                spec.depth, spec.sges_max, kQueueDepthMax, kSgesMax));
    }
    if (spec.credit_connections > spec.depth) {
        throw Error(
            EINVAL,
            fmt::format("credit_connections = {} of a shared receive queue of {} receives: accepted is up to that",
                        spec.credit_connections, spec.depth));
    }
    const auto free = std::find(srqs_.begin(), srqs_.end(), nullptr);
    if (free == srqs_.end()) {
        throw Error(ENOSPC, fmt::format("all {} shared receive queues of a runtime are in use", srqs_.size()));
    }
    const SessionSlot& session = session_slot(spec.session);
    auto slot = std::make_unique<SrqSlot>();
    const auto index = static_cast<std::uint16_t>(free - srqs_.begin());
    slot->handle = {index, generation_after(srq_generations_[index])};
    slot->device = device.index;
    slot->worker = session.worker;
    slot->session = session.id;
    slot->depth = spec.depth;
    slot->credit_connections = spec.credit_connections;

    const PdId pd = pd_of(device, spec.pd);
    if (spec.pool.valid()) {
        slot->pool = share_of(spec.pool, spec.pool_share, spec.depth, spec.session, device.index, pd);
    }

    SrqOptions make{.pd = pds_.at(pd).pd.get(),
                    .domain = device.domains.at(session.worker).get(),
                    .depth = spec.depth,
                    .sges_max = sges_max};
    slot->srq = UniqueSrq(device.device->create_srq(make), {device.device.get()});
    slot->end = std::make_unique<WorkerSrq>(WorkerSrq::Options{.handle = slot->handle,
                                                               .depth = spec.depth,
                                                               .sges_max = sges_max,
                                                               .device = device.index,
                                                               .pd = pd,
                                                               .session = session.index});
    WorkerSrq& end = *slot->end;
    end.recvs().set_provider(slot->srq.get());
    std::uint32_t part = spec.depth;
    if (spec.credit_connections != 0) {
        // At most one peer's part of the receives may be missing from the queue. Otherwise a peer that has used up its
        // own part would have to wait for other peers.
        part = spec.depth / spec.credit_connections;
        slot->grants = std::make_unique<SharedGrants>(end.recvs(), part, spec.credit_connections);
        end.recvs().set_watcher(slot->grants.get());
    }
    if (slot->pool.pool != nullptr) {
        end.recvs().fill_from(*slot->pool.pool->buffers, spec.depth, slot->pool.buffers, part);
    }
    workers_[slot->worker]->proxy->add_srq(end);
    take_share(slot->pool);
    srq_generations_[index] = slot->handle.generation;
    *free = std::move(slot);
    return end.handle();
}

SrqSlot* RuntimeState::find_srq(SrqHandle handle) noexcept {
    SrqSlot* srq = handle.index < srqs_.size() ? srqs_[handle.index].get() : nullptr;
    return srq != nullptr && srq->handle == handle ? srq : nullptr;
}

SrqSlot& RuntimeState::srq_slot(SrqHandle handle) {
    require_running();
    if (SrqSlot* srq = find_srq(handle); srq != nullptr) {
        return *srq;
    }
    throw Error(EINVAL, fmt::format("shared receive queue {}.{} was closed", handle.index, handle.generation));
}

SrqSlot& RuntimeState::live_srq_slot(SrqHandle handle) {
    SrqSlot& srq = srq_slot(handle);
    if (srq.srq == nullptr) {
        throw Error(ENODEV,
                    fmt::format("shared receive queue {}.{} ended with its device \"{}\", which was lost; it can only "
                                "be closed",
                                handle.index, handle.generation, devices_[srq.device]->config.name));
    }
    return srq;
}

// arm_limit() and limit() park nothing, because they use no memory that the worker uses when it posts or polls.
void RuntimeState::arm_limit(SrqHandle handle, std::uint32_t limit) {
    executor_->run([&] {
        SrqSlot& srq = live_srq_slot(handle);
        if (limit > srq.depth) {
            throw Error(EINVAL,
                        fmt::format("limit = {} of a shared receive queue of {} receives: accepted is up to that",
                                    limit, srq.depth));
        }
        ibv_srq_attr attr{};
        attr.srq_limit = limit;
        devices_[srq.device]->device->modify(srq.srq.get(), attr, IBV_SRQ_LIMIT);
    });
}

std::uint32_t RuntimeState::limit(SrqHandle handle) {
    return executor_->run([&] {
        SrqSlot& srq = live_srq_slot(handle);
        return devices_[srq.device]->device->query(srq.srq.get()).srq_limit;
    });
}

void RuntimeState::close_srq(SrqHandle handle) {
    executor_->run(
        [&] {
            if (SrqSlot* srq = find_srq(handle);
                srq != nullptr) {  // else the queue was closed with its session or the runtime
                close_srq_here(*srq);
            }
        },
        Executor::Patience::unlimited);
}

// First the worker stops posting to the queue. Then the queue is destroyed. Only then does the runtime complete the
// queue's receives, because now the device cannot write to their buffers any more (H2).
void RuntimeState::close_srq_here(SrqSlot& srq) {
    if (srq.qps != 0) {
        throw Error(EBUSY,
                    fmt::format("a shared receive queue of device \"{}\" is used by {} queue pairs; close them first",
                                devices_[srq.device]->config.name, srq.qps));
    }
    WorkerProxy& worker = *workers_[srq.worker]->proxy;
    if (srq.srq != nullptr) {
        worker.retire(srq.handle);
        destroy_verbs_srq(srq);
    }
    worker.forget(srq.handle);
    return_share(srq.pool);
    srqs_[srq.handle.index].reset();
}

// Like close_srq_here(), but the slot stays until the application closes the queue. The queue's QPs have ended before;
// their slots stay, too.
void RuntimeState::lose_srq_here(SrqSlot& srq) {
    WorkerProxy& worker = *workers_[srq.worker]->proxy;
    worker.retire(srq.handle, Status::device_removed);
    destroy_verbs_srq(srq);
    worker.lose(srq.handle);
}

void RuntimeState::destroy_verbs_srq(SrqSlot& srq) {
    DeviceSlot& device = *devices_[srq.device];
    const int error = device.device->destroy(srq.srq.get());
    // EIO: the kernel has given up the device, and the device's shared receive queues have ended with it.
    if (error != 0 && !(error == EIO && device.lost)) {
        if (error == EIO && lost_meanwhile(device) && srq.srq == nullptr) {
            return;
        }
        throw Error(error, fmt::format("device \"{}\" does not destroy a shared receive queue", device.config.name));
    }
    (void)srq.srq.release();
}

}  // namespace pollcore
