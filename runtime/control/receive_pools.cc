// Receive pools: making them, who may take from them, their end.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {

ReceivePool RuntimeState::create_receive_pool(const ReceivePoolOptions& options) {
    if (options.session == nullptr || !options.session->valid()) {
        throw Error(EINVAL, "a receive pool needs an open session that its messages go to");
    }
    if (options.buffers < 1 || options.buffers > kPoolBuffersMax || options.buffer_bytes < 1 ||
        options.buffer_bytes > kPoolBufferBytesMax) {
        throw Error(EINVAL, fmt::format("buffers = {}, buffer_bytes = {} of a receive pool: accepted is 1 to {} buffers of 1 to {} "
                                        "bytes",
                                        options.buffers, options.buffer_bytes, kPoolBuffersMax, kPoolBufferBytesMax));
    }
    // Whole lines each, so that what the application writes to one never meets the device in the next.
    const std::uint32_t stride = (options.buffer_bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    MemoryRegion memory =
        allocate(std::size_t{options.buffers} * stride, Access{.local_write = true}, options.device, options.pd);
    auto slot = std::make_unique<PoolSlot>();
    slot->places = options.buffers;
    slot->end.buffer_bytes = options.buffer_bytes;
    slot->end.stride = stride;
    slot->end.buffers = BufferTable(options.buffers);
    return make_pool(options.device, options.pd, *options.session, options.buffers, std::move(memory), std::move(slot));
}

ReceivePool RuntimeState::create_write_ring(const WriteRingOptions& options) {
    if (options.session == nullptr || !options.session->valid()) {
        throw Error(EINVAL, "a write ring needs an open session that its messages go to");
    }
    const std::uint32_t lines = options.bytes / kCacheLine;
    if (!std::has_single_bit(options.bytes) || lines < kRingLinesMin || lines > kRingLinesMax || options.messages < 1 ||
        options.messages > kPoolBuffersMax) {
        throw Error(EINVAL, fmt::format("bytes = {}, messages = {} of a write ring: accepted is a power of two from {} to {}, and 1 to "
                                        "{} messages",
                                        options.bytes, options.messages, kRingLinesMin * kCacheLine, std::uint64_t{kRingLinesMax} * kCacheLine,
                                        kPoolBuffersMax));
    }
    executor_->run([&] {
        const WorkerSlot& worker = *workers_[session_slot(options.session->id()).worker];
        if (worker.bell.get() >= 0) {
            throw Error(EOPNOTSUPP, fmt::format("a write ring at worker \"{}\", which may sleep: messages are found by looking at memory, and "
                                                "nothing would wake it. Leave \"event\" out of its idle policy, or use "
                                                "FlowControl::credits",
                                                worker.config.name));
        }
    });
    MemoryRegion memory = allocate(options.bytes, Access{.local_write = true, .remote_write = true}, options.device, options.pd);
    auto slot = std::make_unique<PoolSlot>();
    slot->places = options.messages + 1;  // and the completion that tells the end
    slot->end.buffer_bytes = ring_message_max(lines);
    slot->end.stride = kCacheLine;
    slot->end.rkey = memory.rkey();
    slot->end.ring = std::make_unique<WriteRing>(memory.data(), lines, options.messages,
                                                 std::uint64_t{platform->random()} << 32 | platform->random());
    return make_pool(options.device, options.pd, *options.session, options.messages, std::move(memory), std::move(slot));
}

ReceivePool RuntimeState::make_pool(const std::string& device, const ProtectionDomain* pd, const Session& session,
                                    std::uint32_t buffers, MemoryRegion memory, std::unique_ptr<PoolSlot> slot) {
    ReceivePool pool;
    pool.buffers_ = buffers;
    pool.buffer_bytes_ = slot->end.buffer_bytes;
    pool.stride_ = slot->end.stride;
    pool.data_ = memory.data_;
    pool.ring_ = slot->end.ring != nullptr;
    executor_->run([&] {
        pool.handle_ = create_pool_here(device, pd, session, memory, std::move(slot));
        pool.counters_ = &find_pool(pool.handle_)->end.counters;
    });
    // From here on the pool ends it, or else the runtime.
    pool.region_ = memory.id_;
    memory.runtime_.reset();
    pool.runtime_ = shared_from_this();
    return pool;
}

PoolHandle RuntimeState::create_pool_here(const std::string& device_name, const ProtectionDomain* pd, const Session& of,
                                          const MemoryRegion& memory, std::unique_ptr<PoolSlot> slot) {
    DeviceSlot& device = device_slot(device_name);
    SessionSlot& session = session_slot(of.id());
    std::uint32_t others = unpolled_here(session);
    for (const auto& pool : pools_) {
        if (pool != nullptr && pool->session == session.id) {
            others += pool->places;
        }
    }
    if (others + slot->places > session.layout.pool_buffers) {
        throw Error(ENOSPC, fmt::format("a pool of {} buffers for session {}: it has room for {} (SessionOptions::pool_buffers), of "
                                        "which {} are other pools', or were those of closed ones whose messages were not polled",
                                        slot->places, session.id, session.layout.pool_buffers, others));
    }
    slot->device = device.index;
    slot->pd = pd_of(device, pd);
    slot->worker = session.worker;
    slot->session = session.id;
    const std::optional<PoolHandle> handle = pool_handles_.take();
    if (!handle) {
        throw Error(ENOSPC, fmt::format("all {} receive pools of a runtime are in use", kReceivePoolsMax));
    }
    WorkerPool& end = slot->end;
    end.handle = *handle;
    end.addr = memory.addr();
    end.lkey = memory.lkey();
    end.session_index = session.index;
    try {
        pools_.resize(std::max<std::size_t>(pools_.size(), handle->index + std::size_t{1}));
        workers_[slot->worker]->proxy->add_pool(end);
    } catch (...) {
        pool_handles_.give_back(*handle);
        throw;
    }
    pools_[handle->index] = std::move(slot);
    return *handle;
}

PoolSlot* RuntimeState::find_pool(PoolHandle handle) noexcept {
    PoolSlot* pool = handle.index < pools_.size() ? pools_[handle.index].get() : nullptr;
    return pool != nullptr && pool->end.handle == handle ? pool : nullptr;
}

PoolSlot& RuntimeState::usable_pool(const ReceivePool& from, const Session& session, std::uint32_t device, std::uint32_t pd) {
    PoolSlot* pool = find_pool(from.handle());
    if (pool == nullptr || !pool->attached) {
        throw Error(EINVAL, "the receive pool is closed, or its session is");
    }
    if (pool->session != session.id()) {
        throw Error(EINVAL, fmt::format("the receive pool belongs to session {}, and the receives to session {}, which is the first "
                                        "of the shares",
                                        pool->session, session.id()));
    }
    if (pool->device != device || pool->pd != pd) {
        throw Error(EINVAL, fmt::format("the receive pool is of another {} than what takes from it; its device is \"{}\"",
                                        pool->device != device ? "device" : "protection domain",
                                        devices_[pool->device]->config.name));
    }
    return *pool;
}

// What a queue pair or shared receive queue of `depth` receives gets. It is not taken yet.
PoolShare RuntimeState::share_of(const ReceivePool& from, std::uint32_t asked, std::uint32_t depth, const Session& session,
                                 std::uint32_t device, std::uint32_t pd) {
    PoolSlot* pool = &usable_pool(from, session, device, pd);
    if (pool->end.ring != nullptr) {
        throw Error(EINVAL, "a write ring has no buffers for receives: it is for a queue pair with FlowControl::ring");
    }
    const std::uint32_t share = asked != 0 ? asked : 2 * depth;
    const auto orphaned = static_cast<std::uint32_t>(pool->end.counters.orphaned.value());
    const std::uint32_t buffers = pool->end.buffers.size();
    if (depth < 1 || share < depth || std::uint64_t{pool->shares} + orphaned + share > buffers) {
        throw Error(depth < 1 || share < depth ? EINVAL : ENOSPC,
                    fmt::format("{} receives posted of {} buffers of a receive pool: accepted is one receive or more, and as many "
                                "buffers or more. The pool has {}, of which {} are the shares of others, and {} were not released "
                                "when their queue pair was closed",
                                depth, share, buffers, pool->shares, orphaned));
    }
    return {pool, share};
}

// A write ring has one writer.
PoolShare RuntimeState::ring_for(const QueuePairOptions& options, const QpSlot& qp) {
    PoolSlot& ring = usable_pool(*options.pool, *options.shares.front().session, qp.device, qp.pd);
    if (ring.end.ring == nullptr) {
        throw Error(EINVAL, "the messages of a queue pair with FlowControl::ring arrive in a write ring (Runtime::create_write_ring), "
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
        if (pool != nullptr && pool->end.ring != nullptr) {
            return pool->end.ring->held();
        }
        return pool == nullptr ? std::vector<HeldBuffer>{}
                               : pool->end.buffers.held(static_cast<std::uint32_t>(pool->end.counters.delivered.value()));
    });
}

// The queue pairs and shared receive queues of the session are closed. The memory stays, since the application may still have
// messages in it.
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
    const std::uint32_t produced = workers_[pool.worker]->proxy->remove_pool(pool.end.handle);
    pool.attached = false;
    const auto session = sessions_.find(pool.session);
    if (const auto held = static_cast<std::uint32_t>(pool.end.counters.held.value()); held != 0 && session != sessions_.end()) {
        session->second.unpolled.push_back({held, produced});
    }
}

/// Buffers of closed pools whose completions may still stand in the ring.
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

void RuntimeState::close_receive_pool(PoolHandle handle, std::uint64_t region) {
    executor_->run([&] {
        PoolSlot* pool = find_pool(handle);
        if (pool->takers != 0 && running_.load()) {
            throw Error(EBUSY, fmt::format("a receive pool of device \"{}\" is used by {} queue pairs and shared receive queues; "
                                           "close them first",
                                           devices_[pool->device]->config.name, pool->takers));
        }
        detach_pool_here(*pool);
    });
    deregister(region);
    executor_->run([&] {
        pools_[handle.index].reset();
        pool_handles_.give_back(handle);
    });
}

// ---- The object ----

ReceivePool::~ReceivePool() {
    try {
        close();
    } catch (const std::exception& error) {
        log_warning("a receive pool stays until the runtime ends: {}", error.what());
    }
}

ReceivePool::ReceivePool(ReceivePool&& other) noexcept { *this = std::move(other); }

ReceivePool& ReceivePool::operator=(ReceivePool&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(handle_, other.handle_);
    std::swap(region_, other.region_);
    std::swap(data_, other.data_);
    std::swap(buffers_, other.buffers_);
    std::swap(buffer_bytes_, other.buffer_bytes_);
    std::swap(stride_, other.stride_);
    std::swap(ring_, other.ring_);
    std::swap(counters_, other.counters_);
    return *this;
}

std::vector<HeldBuffer> ReceivePool::held() const {
    return runtime_ == nullptr ? std::vector<HeldBuffer>{} : runtime_->held_buffers(handle_);
}

void ReceivePool::close() {
    if (runtime_ == nullptr) {
        return;
    }
    runtime_->close_receive_pool(handle_, region_);
    runtime_.reset();
    handle_ = {};
    data_ = nullptr;
    counters_ = nullptr;
    buffers_ = buffer_bytes_ = stride_ = 0;
}

}  // namespace pollcore
