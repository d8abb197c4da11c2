// The worker's end of a receive pool: which of its buffers is where.
//
// A buffer is free, posted to a receive queue, or with the application. A taker is a receive queue that the pool fills: a
// queue pair's own or a shared one. It has no more than its share of the buffers, so takers never wait for each other.
//
// Thread safety: the worker's alone; what BufferTable::held() reads is written by it and read by anyone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "flow/write_ring.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/handle.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/receive_pool.hpp"

namespace pollcore {

struct WorkerPool;
struct WorkerQp;
class WorkerSession;
struct WorkerSrq;

/// A receive queue that a pool keeps filled. Of a queue pair or of a shared receive queue.
struct PoolTaker {
    WorkerPool* pool = nullptr;  ///< null: sessions post the receives
    WorkerQp* qp = nullptr;
    WorkerSrq* srq = nullptr;
    std::uint32_t depth = 0;      ///< receives posted at most
    std::uint32_t share = 0;      ///< buffers that it may have, posted or with the application
    std::uint32_t low_water = 0;  ///< receives posted at which it is filled
    std::uint32_t posted = 0;
    std::uint32_t held = 0;  ///< with the application
    bool listed = false;     ///< stands in the worker's list of those to be filled
    bool told = false;       ///< a queue pair: the application knows that no message comes in this life

    /// It is filled when `part` of the receives are used, or a quarter: few doorbells, and the queue is never near its end while
    /// there are buffers.
    void set_depth(std::uint32_t receives, std::uint32_t buffers, std::uint32_t part = std::numeric_limits<std::uint32_t>::max()) noexcept {
        depth = receives;
        share = buffers;
        low_water = depth - std::min(std::max(depth / 4, 1u), part);
    }
    /// Receives that could be posted, as far as this one is concerned.
    [[nodiscard]] std::uint32_t wanted() const noexcept { return std::min(depth - posted, share - posted - held); }
};

/// Buffers by number.
class BufferTable {
public:
    BufferTable() = default;
    explicit BufferTable(std::uint32_t buffers) : places_(buffers), held_(buffers) {
        free_.reserve(buffers);
        for (std::uint32_t buffer = buffers; buffer > 0; --buffer) {
            free_.push_back(buffer - 1);
        }
    }

    [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(places_.size()); }
    [[nodiscard]] std::uint32_t free() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
    /// Not when none is free.
    [[nodiscard]] std::uint32_t take() noexcept {
        const std::uint32_t buffer = free_.back();
        free_.pop_back();
        return buffer;
    }
    void put_back(std::uint32_t buffer) noexcept { free_.push_back(buffer); }

    void hand_out(std::uint32_t buffer, PoolTaker& taker, QpHandle qp, std::uint32_t delivered) noexcept {
        places_[buffer] = {.taker = &taker, .with_application = true};
        const std::uint64_t word = std::uint64_t{qp.index} << 48 | std::uint64_t{qp.generation} << 32 | delivered;
        held_[buffer].store(word, std::memory_order_relaxed);  // as a counter
    }
    [[nodiscard]] bool with_application(std::uint32_t buffer) const noexcept {
        return buffer < size() && places_[buffer].with_application;
    }
    /// One that is with the application is free from now on. Whose it was; null when that one is gone.
    PoolTaker* take_back(std::uint32_t buffer) noexcept {
        PoolTaker* taker = places_[buffer].taker;
        places_[buffer] = {};
        held_[buffer].store(0, std::memory_order_relaxed);
        put_back(buffer);
        return taker;
    }
    /// The taker ends; what the application has of it stays with the application.
    void forget(const PoolTaker& taker) noexcept {
        for (Place& place : places_) {
            if (place.taker == &taker) {
                place.taker = nullptr;
            }
        }
    }

    /// Any thread: what the application has. `delivered` is the pool's count of messages.
    [[nodiscard]] std::vector<HeldBuffer> held(std::uint32_t delivered) const {
        std::vector<HeldBuffer> all;
        for (std::uint32_t buffer = 0; buffer < held_.size(); ++buffer) {
            const std::uint64_t word = held_[buffer].load(std::memory_order_relaxed);
            const QpHandle qp{static_cast<std::uint16_t>(word >> 48), static_cast<std::uint16_t>(word >> 32)};
            if (qp.valid()) {
                all.push_back({buffer, qp, delivered - static_cast<std::uint32_t>(word)});
            }
        }
        return all;
    }

private:
    struct Place {
        PoolTaker* taker = nullptr;
        bool with_application = false;
    };

    OwnLines<Place> places_;
    OwnLines<std::uint32_t> free_;  // the last that came back first, since it is in the cache
    std::vector<std::atomic<std::uint64_t>> held_;
};

/// Made by the control thread, the worker's from add_pool until the answer to remove_pool.
struct alignas(kCacheLine) WorkerPool {
    WorkerPool() = default;
    WorkerPool(const WorkerPool&) = delete;  // it points into itself
    WorkerPool& operator=(const WorkerPool&) = delete;

    PoolHandle handle;
    WorkerSession* session = nullptr;  ///< gets the messages and gives the buffers back; set by add_pool
    std::uint64_t addr = 0;
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;  ///< of a write ring
    std::uint32_t buffer_bytes = 0;
    std::uint32_t stride = 0;
    std::uint32_t session_index = 0;
    BufferTable buffers;
    std::unique_ptr<WriteRing> ring;  ///< of a write ring, which has no buffers
    WorkerQp* ring_qp = nullptr;      ///< whose messages come by the ring, and have not ended; the worker's
    ReceivePoolCounters own_counters;
    ReceivePoolCounters* counters = &own_counters;  ///< or where another process sees them
};

}  // namespace pollcore
