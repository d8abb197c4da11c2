// Makes and ends receive pools, and gives out shares of them.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/undo.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {

PoolInfo RuntimeState::create_pool(const PoolSpec& spec, std::shared_ptr<ReceivePoolCounters> published) {
    return executor_->run([&] {
        DeviceSlot& device = device_slot(spec.device.string());
        SessionSlot& session = session_slot(spec.session);
        const auto region = regions_.find(spec.region);
        if (region == regions_.end() || region->second.mr == nullptr || region->second.ending) {
            throw Error(EINVAL, "the memory region of a receive pool was ended");
        }
        auto slot = std::make_unique<PoolSlot>();
        slot->device = device.index;
        slot->pd = pd_of(device, spec.pd);
        slot->worker = session.worker;
        slot->session = session.id;
        if (region->second.pd != slot->pd) {
            throw Error(EINVAL, "the memory region of a receive pool is of another protection domain");
        }
        if (spec.ring) {
            require_ring_here(*slot);
        }
        slot->places = spec.buffers + spec.ring;  // a write ring also has a final completion
        if (region->second.mr->length < spec.bytes()) {
            throw Error(EINVAL, fmt::format("a receive pool of {} bytes in a memory region of {}", spec.bytes(),
                                            region->second.mr->length));
        }
        std::uint32_t others = unpolled_here(session);
        std::size_t may_be_unpolled = session.unpolled.size() + 1;
        for (const auto& pool : pools_) {
            if (pool != nullptr && pool->session == session.id) {
                others += pool->places;
                ++may_be_unpolled;
            }
        }
        session.unpolled.reserve(may_be_unpolled);  // so that detaching a pool needs no memory
        if (others + slot->places > session.layout.pool_buffers) {
            throw Error(
                ENOSPC,
                fmt::format(
                    "a pool of {} buffers for session {}: it has room for {} (SessionOptions::pool_buffers), of "
                    "which {} belong to other pools, or to closed pools with messages that were not polled",
                    slot->places, session.called(), session.layout.pool_buffers, others));
        }
        const std::optional<PoolHandle> handle = pool_handles_.take();
        if (!handle) {
            throw Error(ENOSPC, fmt::format("all {} receive pools of a runtime are in use", kReceivePoolsMax));
        }
        Undo give_back([&]() noexcept { pool_handles_.give_back(*handle); });
        const WorkerPool::Options options{
            .handle = *handle, .session_index = session.index, .counters = published.get()};
        spec.ring ? shape_ring(*slot, options, spec, region->second)
                  : shape_buffers(*slot, options, spec, region->second);
        slot->published = std::move(published);
        pools_.resize(std::max<std::size_t>(pools_.size(), handle->index + std::size_t{1}));
        WorkerPool& end = *slot->end;
        workers_[slot->worker]->proxy->add_pool(end);
        give_back.keep();
        pools_[handle->index] = std::move(slot);
        return PoolInfo{*handle, &end.counters()};
    });
}

void RuntimeState::shape_buffers(PoolSlot& slot, const WorkerPool::Options& options, const PoolSpec& spec,
                                 const RegionSlot& region) {
    auto pool = std::make_unique<BufferPool>(options, BufferPool::Memory{.addr = region.iova + spec.first_byte,
                                                                         .lkey = region.mr->lkey,
                                                                         .buffers = spec.buffers,
                                                                         .buffer_bytes = spec.buffer_bytes,
                                                                         .stride = spec.stride});
    slot.buffers = pool.get();
    slot.end = std::move(pool);
}

void RuntimeState::shape_ring(PoolSlot& slot, const WorkerPool::Options& options, const PoolSpec& spec,
                              const RegionSlot& region) {
    auto pool = std::make_unique<RingPool>(
        options, RingPool::Memory{.data = static_cast<std::byte*>(region.data),
                                  .addr = region.iova,
                                  .rkey = region.mr->rkey,
                                  .lines = spec.buffer_bytes / static_cast<std::uint32_t>(kCacheLine),
                                  .held_max = spec.buffers,
                                  .secret = std::uint64_t{platform->random()} << 32 | platform->random()});
    slot.ring = pool.get();
    slot.end = std::move(pool);
}

void RuntimeState::require_ring_here(const PoolSlot& slot) const {
    const WorkerSlot& worker = *workers_[slot.worker];
    if (worker.bell.get() >= 0) {
        throw Error(
            EOPNOTSUPP,
            fmt::format("a write ring at worker \"{}\", which may sleep: messages are found by looking at memory, and "
                        "nothing would wake it. Leave \"event\" out of its idle policy, or use "
                        "FlowControl::credits",
                        worker.config.name));
    }
}

PoolSlot* RuntimeState::find_pool(PoolHandle handle) noexcept {
    PoolSlot* pool = handle.index < pools_.size() ? pools_[handle.index].get() : nullptr;
    return pool != nullptr && pool->end->handle() == handle ? pool : nullptr;
}

PoolSlot& RuntimeState::usable_pool(PoolHandle from, std::uint32_t session, std::uint32_t device, PdId pd) {
    PoolSlot* pool = find_pool(from);
    if (pool == nullptr || !pool->attached) {
        throw Error(EINVAL, "the receive pool is closed, or its session is");
    }
    if (pool->session != session) {
        throw Error(
            EINVAL,
            fmt::format("the receive pool belongs to session {}, and the receives to session {}, which is the first "
                        "of the shares",
                        called_session(pool->session), called_session(session)));
    }
    if (pool->device != device || pool->pd != pd) {
        throw Error(
            EINVAL,
            fmt::format("the receive pool is of another {} than what takes from it; its device is \"{}\"",
                        pool->device != device ? "device" : "protection domain", devices_[pool->device]->config.name));
    }
    return *pool;
}

// Returns the share that a queue pair or shared receive queue of `depth` receives will get. The caller takes it by
// take_share().
PoolShare RuntimeState::share_of(PoolHandle from, std::uint32_t asked, std::uint32_t depth, std::uint32_t session,
                                 std::uint32_t device, PdId pd) {
    PoolSlot* pool = &usable_pool(from, session, device, pd);
    if (pool->ring != nullptr) {
        throw Error(EINVAL, "a write ring has no buffers for receives: it is for a queue pair with FlowControl::ring");
    }
    const std::uint32_t share = asked != 0 ? asked : 2 * depth;
    const auto orphaned = static_cast<std::uint32_t>(pool->end->counters().orphaned.value());
    const std::uint32_t buffers = pool->buffers->size();
    if (depth < 1 || share < depth || std::uint64_t{pool->shares} + orphaned + share > buffers) {
        throw Error(
            depth < 1 || share < depth ? EINVAL : ENOSPC,
            fmt::format(
                "{} receives posted of {} buffers of a receive pool: accepted is one receive or more, and as many "
                "buffers or more. The pool has {}, of which {} are the shares of others, and {} were not released "
                "when their queue pair was closed",
                depth, share, buffers, pool->shares, orphaned));
    }
    return {pool, share};
}

// Throws Error if the write ring already has a writer: it can have only one.
PoolShare RuntimeState::ring_for(const QpSpec& spec, const QpSlot& qp) {
    PoolSlot& ring = usable_pool(spec.pool, spec.shares[0].session, qp.device, qp.pd);
    if (ring.ring == nullptr) {
        throw Error(
            EINVAL,
            "the messages of a queue pair with FlowControl::ring arrive in a write ring (Context::create_write_ring), "
            "not in a receive pool");
    }
    if (ring.takers != 0) {
        throw Error(EBUSY, "the write ring is another queue pair's");
    }
    return {&ring, 0};
}

void RuntimeState::take_share(const PoolShare& share) noexcept {
    if (share.pool != nullptr) {
        ++share.pool->takers;
        share.pool->shares += share.buffers;
    }
}

void RuntimeState::return_share(const PoolShare& share) noexcept {
    if (share.pool != nullptr) {
        --share.pool->takers;
        share.pool->shares -= share.buffers;
    }
}

std::vector<HeldBuffer> RuntimeState::held_buffers(PoolHandle handle) {
    return executor_->run([&] {
        const PoolSlot* pool = find_pool(handle);
        return pool == nullptr ? std::vector<HeldBuffer>{} : pool->end->held();
    });
}

// Called after the session's queue pairs and shared receive queues were closed. The pools' memory stays, because the
// application may still have messages in it.
void RuntimeState::detach_pools_here(std::uint32_t session_id) {
    for (const auto& pool : pools_) {
        if (pool != nullptr && pool->session == session_id) {
            detach_pool_here(*pool);
        }
    }
}

void RuntimeState::detach_pool_here(PoolSlot& pool) {
    if (!pool.attached || !running_.load()) {
        return;
    }
    const std::uint32_t produced = workers_[pool.worker]->proxy->remove_pool(pool.end->handle());
    pool.attached = false;
    const auto session = sessions_.find(pool.session);
    if (const auto held = static_cast<std::uint32_t>(pool.end->counters().held.value());
        held != 0 && session != sessions_.end()) {
        session->second.unpolled.push_back({held, produced});
    }
}

/// Number of buffers of closed pools that completions in the session's ring may still name.
std::uint32_t RuntimeState::unpolled_here(SessionSlot& session) {
    const auto* ring = at_offset<RingHeader>(session.block.data(), session.layout.completions());
    const auto released = static_cast<std::uint32_t>(ring->released.load(std::memory_order_acquire));
    std::erase_if(session.unpolled, [&](const SessionSlot::Unpolled& closed) {
        return static_cast<std::int32_t>(released - closed.produced) >= 0;
    });
    std::uint32_t buffers = 0;
    for (const SessionSlot::Unpolled& closed : session.unpolled) {
        buffers += closed.buffers;
    }
    return buffers;
}

void RuntimeState::close_pool(PoolHandle handle, std::uint64_t region) {
    executor_->run(
        [&] {
            begin_closing_pool_here(handle);
            deregister(region);
            end_closing_pool_here(handle);
        },
        Executor::Patience::unlimited);
}

void RuntimeState::begin_closing_pool_here(PoolHandle handle) {
    PoolSlot* pool = find_pool(handle);
    if (pool->takers != 0 && running_.load()) {
        throw Error(EBUSY,
                    fmt::format("a receive pool of device \"{}\" is used by {} queue pairs and shared receive queues; "
                                "close them first",
                                devices_[pool->device]->config.name, pool->takers));
    }
    detach_pool_here(*pool);
}

void RuntimeState::end_closing_pool_here(PoolHandle handle) noexcept {
    pools_[handle.index].reset();
    pool_handles_.give_back(handle);
}

}  // namespace pollcore
