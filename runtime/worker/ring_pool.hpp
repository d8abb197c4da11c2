// The worker's end of a write ring: one peer's messages, found by looking at memory.
//
// Thread safety: as WorkerPool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/due_list.hpp"
#include "worker/turn.hpp"
#include "worker/worker_pool.hpp"
#include "worker/write_ring.hpp"

namespace pollcore {

class Flow;
class WorkerQp;

class alignas(kCacheLine) RingPool final : public WorkerPool {
public:
    struct Memory {
        std::byte* data = nullptr;  ///< zeroed
        std::uint64_t addr = 0;
        std::uint32_t rkey = 0;
        std::uint32_t lines = 0;     ///< a power of two
        std::uint32_t held_max = 0;  ///< records that may be with the application
        std::uint64_t secret = 0;
        std::uint32_t position = 0;  ///< where the first record begins
    };
    RingPool(const Options& options, const Memory& memory)
        : WorkerPool(options),
          ring_(memory.data, memory.lines, memory.held_max, memory.secret, memory.position),
          addr_(memory.addr),
          rkey_(memory.rkey) {}

    [[nodiscard]] const WriteRing& ring() const noexcept { return ring_; }
    [[nodiscard]] std::uint64_t addr() const noexcept { return addr_; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }

    /// A new writer begins, the peer of `qp`. The worker looks at the ring from now on.
    void begin(Turn& turn, WorkerQp& qp, Flow& flow, bool in_order) noexcept;
    /// Messages may come from the peer of `qp`, or their end has not been told.
    [[nodiscard]] bool serves(const WorkerQp& qp) const noexcept { return qp_ == &qp; }
    /// The next record has begun to arrive.
    [[nodiscard]] [[gnu::always_inline]] bool begun() const noexcept { return ring_.begun(); }
    /// Hands out the records that have come, and, in error, then the end. Returns how many records there were.
    std::uint32_t take_records(Turn& turn) noexcept;
    /// The queue pair's life is over; the ring goes on with the next.
    void leave(Turn& turn) noexcept;
    /// The writer knows that it may fill all positions before this one.
    void set_told(std::uint32_t told) noexcept { told_ = told; }

    void release(Turn& turn, std::span<const std::uint32_t> places) noexcept override;
    [[nodiscard]] std::vector<HeldBuffer> held() const override { return ring_.held(); }
    [[nodiscard]] std::uint32_t message_max() const noexcept override { return ring_.message_max(); }

    Due due;  ///< of Turn::rings

private:
    void tell_end(Turn& turn) noexcept;
    void hand_out(Turn& turn, std::uint32_t place, Completion& completion) noexcept;

    WriteRing ring_;
    WorkerQp* qp_ = nullptr;  // queue pair whose peer writes here; null: none, or its messages have ended
    Flow* flow_ = nullptr;    // the flow control of qp_
    std::uint32_t told_ = 0;
    std::uint64_t addr_;
    std::uint32_t rkey_;
};

}  // namespace pollcore
