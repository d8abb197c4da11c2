// A receive pool, as the worker sees it: who has which buffer.
//
// Each buffer is free, posted by a taker, or with the application. A taker is a receive queue, which posts buffers as
// receives, or a rendezvous, which reads announced messages into them. A taker never has more than its share of the
// buffers, so takers never wait for each other.
//
// Thread safety: the control thread makes the object. It belongs to the worker from the command AddPool until the
// worker has answered RemovePool. Any thread may call held() and read the counters.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <infiniband/verbs.h>

#include "pollcore/completion.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/handle.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/receive_pool.hpp"
#include "worker/turn.hpp"
#include "worker/worker_session.hpp"

namespace pollcore {

class PoolTaker;

/// The place of each buffer of a pool, by buffer number.
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
    /// Must not be called when no buffer is free.
    [[nodiscard]] std::uint32_t take() noexcept {
        const std::uint32_t buffer = free_.back();
        free_.pop_back();
        return buffer;
    }
    void put_back(std::uint32_t buffer) noexcept { free_.push_back(buffer); }

    void hand_out(std::uint32_t buffer, PoolTaker& taker, QpHandle qp, std::uint32_t delivered) noexcept {
        places_[buffer] = {.taker = &taker, .with_application = true};
        const std::uint64_t word = std::uint64_t{qp.index} << 48 | std::uint64_t{qp.generation} << 32 | delivered;
        held_[buffer].store(word, std::memory_order_relaxed);  // relaxed, like a counter
    }
    [[nodiscard]] bool with_application(std::uint32_t buffer) const noexcept {
        return buffer < size() && places_[buffer].with_application;
    }
    /// Takes a buffer back from the application, and makes it free. Returns the buffer's taker, or null if the taker
    /// has ended.
    PoolTaker* take_back(std::uint32_t buffer) noexcept {
        PoolTaker* taker = places_[buffer].taker;
        places_[buffer] = {};
        held_[buffer].store(0, std::memory_order_relaxed);
        put_back(buffer);
        return taker;
    }
    /// Called when the taker ends. Its buffers that are with the application stay there.
    void forget(const PoolTaker& taker) noexcept {
        for (Place& place : places_) {
            if (place.taker == &taker) {
                place.taker = nullptr;
            }
        }
    }

    /// Returns the buffers that are with the application. `delivered` is the pool's count of delivered messages. Any
    /// thread.
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
    OwnLines<std::uint32_t> free_;  // a stack, because the buffer that came back last is most likely still in the cache
    std::vector<std::atomic<std::uint64_t>> held_;
};

/// Memory into which messages arrive without a receive posted by the session. The session gives the memory of each
/// message back. The memory is a set of buffers (BufferPool) or a write ring (RingPool).
class WorkerPool {
public:
    struct Options {
        PoolHandle handle;
        std::uint32_t session_index = 0;  ///< the session that gets the messages: its index in the worker's table
        /// counters in memory that another process can read; null means own_counters_
        ReceivePoolCounters* counters = nullptr;
    };

    explicit WorkerPool(const Options& options)
        : handle_(options.handle),
          session_index_(options.session_index),
          counters_(options.counters != nullptr ? options.counters : &own_counters_) {}
    virtual ~WorkerPool() = default;
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    [[nodiscard]] PoolHandle handle() const noexcept { return handle_; }
    [[nodiscard]] ReceivePoolCounters& counters() noexcept { return *counters_; }
    [[nodiscard]] const ReceivePoolCounters& counters() const noexcept { return *counters_; }
    [[nodiscard]] std::uint32_t session_index() const noexcept { return session_index_; }
    [[nodiscard]] WorkerSession& session() const noexcept { return *session_; }
    /// Called when the worker gets the pool.
    void set_session(WorkerSession& session) noexcept { session_ = &session; }

    /// Takes back the memory of messages, which the session releases. `buffers` may contain invalid numbers.
    virtual void release(Turn& turn, std::span<const std::uint32_t> buffers) noexcept = 0;
    /// Any thread.
    [[nodiscard]] virtual std::vector<HeldBuffer> held() const = 0;
    [[nodiscard]] virtual std::uint32_t message_max() const noexcept = 0;

private:
    PoolHandle handle_;
    std::uint32_t session_index_;
    WorkerSession* session_ = nullptr;
    ReceivePoolCounters own_counters_;
    ReceivePoolCounters* counters_;
};

class alignas(kCacheLine) BufferPool final : public WorkerPool {
public:
    struct Memory {
        std::uint64_t addr = 0;
        std::uint32_t lkey = 0;
        std::uint32_t buffers = 0;
        std::uint32_t buffer_bytes = 0;
        std::uint32_t stride = 0;
    };
    BufferPool(const Options& options, const Memory& memory)
        : WorkerPool(options), memory_(memory), buffers_(memory.buffers) {}

    [[nodiscard]] const Memory& memory() const noexcept { return memory_; }
    [[nodiscard]] std::uint32_t size() const noexcept { return buffers_.size(); }
    [[nodiscard]] std::uint32_t free() const noexcept { return buffers_.free(); }
    [[nodiscard]] ibv_sge sge(std::uint32_t buffer) const noexcept { return sge(buffer, memory_.buffer_bytes); }
    [[nodiscard]] ibv_sge sge(std::uint32_t buffer, std::uint32_t length) const noexcept {
        return {.addr = memory_.addr + std::uint64_t{buffer} * memory_.stride, .length = length, .lkey = memory_.lkey};
    }

    void release(Turn& turn, std::span<const std::uint32_t> buffers) noexcept override;
    [[nodiscard]] std::vector<HeldBuffer> held() const override {
        return buffers_.held(static_cast<std::uint32_t>(counters().delivered.value()));
    }
    [[nodiscard]] std::uint32_t message_max() const noexcept override { return memory_.buffer_bytes; }

    // Called by the pool's takers.
    /// Must not be called when no buffer is free.
    [[nodiscard]] std::uint32_t take() noexcept { return buffers_.take(); }
    void put_back(std::uint32_t buffer) noexcept { buffers_.put_back(buffer); }
    void count_taken(std::uint32_t n) noexcept {
        session().take_pooled(n);
        counters().posted.add(n);
    }
    void count_come_back() noexcept {
        session().end_pooled();
        counters().posted.add(-1);
    }
    void hand_out(Turn& turn, PoolTaker& taker, std::uint32_t buffer, Completion& completion,
                  const ibv_wc* datagram) noexcept;
    /// Called when the taker ends. Its buffers that are with the application stay there.
    void forget(const PoolTaker& taker, std::uint32_t held) noexcept {
        buffers_.forget(taker);
        counters().orphaned.add(held);
    }

private:
    Memory memory_;
    BufferTable buffers_;
};

/// What one receive queue or rendezvous has of a buffer pool: its limits, and how many buffers it uses. The queue or
/// the rendezvous is the User.
class PoolTaker {
public:
    /// buffer_released() is called when the application gives back a buffer of the taker while low() is true.
    class User {
    public:
        virtual void buffer_released(Turn& turn) noexcept = 0;

    protected:
        ~User() = default;
    };

    explicit PoolTaker(User& user) : user_(user) {}
    PoolTaker(const PoolTaker&) = delete;
    PoolTaker& operator=(const PoolTaker&) = delete;

    /// At most `depth` buffers are posted, and at most `share` are posted or with the application. The queue is
    /// refilled when depth / 4 of its buffers were used, or `part` if that is less. So few doorbells are needed, and
    /// the queue seldom runs empty.
    void begin(BufferPool& pool, std::uint32_t depth, std::uint32_t share,
               std::uint32_t part = std::numeric_limits<std::uint32_t>::max()) noexcept {
        pool_ = &pool;
        depth_ = depth;
        share_ = share;
        low_water_ = depth - std::min(std::max(depth / 4, 1u), part);
    }
    /// Returns null if the queue takes no buffers from a pool.
    [[nodiscard]] BufferPool* pool() const noexcept { return pool_; }
    /// Buffers that are posted and wait for a message.
    [[nodiscard]] std::uint32_t posted() const noexcept { return posted_; }
    /// Buffers with the application.
    [[nodiscard]] std::uint32_t held() const noexcept { return held_; }
    /// Buffers that the taker may take now.
    [[nodiscard]] std::uint32_t available() const noexcept {
        return std::min({depth_ - posted_, share_ - posted_ - held_, pool_->free()});
    }
    /// Returns true if depth and share allow one more posted buffer.
    [[nodiscard]] bool wants() const noexcept { return depth_ != posted_ && share_ != posted_ + held_; }
    /// Returns true if so few buffers are posted that the queue is to be refilled.
    [[nodiscard]] bool low() const noexcept { return posted_ <= low_water_; }

    /// Counts `n` buffers as taken. Called before `n` calls of take(). `n` is at most available().
    void count_taken(std::uint32_t n) noexcept {
        posted_ += n;
        pool_->count_taken(n);
    }
    [[nodiscard]] std::uint32_t take() noexcept { return pool_->take(); }
    /// Returns to the pool a buffer that got no message.
    void return_unused(std::uint32_t buffer) noexcept {
        come_back();
        pool_->put_back(buffer);
    }
    /// Hands a buffer with a message to the application. `completion` describes the message and names its queue pair.
    void hand_out(Turn& turn, std::uint32_t buffer, Completion& completion, const ibv_wc* datagram) noexcept {
        come_back();
        ++held_;
        pool_->hand_out(turn, *this, buffer, completion, datagram);
    }
    /// Called when a message has used a buffer. Counts low_water if the queue is to be refilled from now on, and
    /// ran_dry if no buffer is left.
    void count_low() noexcept {
        pool_->counters().low_water.add(posted_ == low_water_);
        pool_->counters().ran_dry.add(posted_ == 0);
    }
    /// Sends the application one final completion, which says that no more messages come. Like each completion of a
    /// pool, it lends the application a buffer. This buffer is empty. Returns false if the completion cannot be sent
    /// yet, because the taker can take no buffer now, or because buffers are still posted.
    bool tell_end(Turn& turn, Completion& completion) noexcept;
    /// Called when a new life of the queue begins. This life will have its own final completion.
    void renew() noexcept { told_ = false; }
    /// Called when the application has given back one of the taker's buffers.
    void released(Turn& turn) noexcept {
        --held_;
        if (low()) {
            user_.buffer_released(turn);
        }
    }
    /// Called when the taker ends. None of its buffers is posted.
    void dismiss() noexcept {
        if (pool_ != nullptr && held_ != 0) {
            pool_->forget(*this, held_);
        }
    }

private:
    void come_back() noexcept {
        --posted_;
        pool_->count_come_back();
    }

    User& user_;
    BufferPool* pool_ = nullptr;
    std::uint32_t depth_ = 0;
    std::uint32_t share_ = 0;
    std::uint32_t low_water_ = 0;
    std::uint32_t posted_ = 0;
    std::uint32_t held_ = 0;
    bool told_ = false;  // the final completion of this life was sent
};

}  // namespace pollcore
