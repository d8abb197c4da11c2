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

    /// A new writer: the peer of `qp`. The ring is looked at from now on.
    void begin(Turn& turn, WorkerQp& qp, Flow& flow, bool in_order) noexcept;
    /// Messages may come from the peer of `qp`, or their end has not been told.
    [[nodiscard]] bool serves(const WorkerQp& qp) const noexcept { return qp_ == &qp; }
    /// Whether something of the next record is there.
    [[nodiscard]] [[gnu::always_inline]] bool begun() const noexcept { return ring_.begun(); }
    /// Hands out what has come; in error, then the end. Returns how much there was.
    std::uint32_t take_records(Turn& turn) noexcept;
    /// The queue pair's life is over; the ring goes on with the next.
    void leave(Turn& turn) noexcept;
    /// The writer knows of all positions before this.
    void set_told(std::uint32_t told) noexcept { told_ = told; }

    void release(Turn& turn, std::span<const std::uint32_t> places) noexcept override;
    [[nodiscard]] std::vector<HeldBuffer> held() const override { return ring_.held(); }
    [[nodiscard]] std::uint32_t message_max() const noexcept override { return ring_.message_max(); }

    Due due;  ///< of Turn::rings

private:
    void tell_end(Turn& turn) noexcept;
    void hand_out(Turn& turn, std::uint32_t place, Completion& completion) noexcept;

    WriteRing ring_;
    WorkerQp* qp_ = nullptr;  // whose peer's messages come by it, and have not ended
    Flow* flow_ = nullptr;    // that one's
    std::uint32_t told_ = 0;
    std::uint64_t addr_;
    std::uint32_t rkey_;
};

}  // namespace pollcore
