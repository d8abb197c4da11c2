// A write ring, as the worker sees it: the messages of one peer, which the worker finds by looking at memory.
//
// Thread safety: as for WorkerPool.
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
        std::uint32_t held_max = 0;  ///< at most this many records may be with the application
        std::uint64_t secret = 0;
        std::uint32_t position = 0;  ///< position of the first record
    };
    RingPool(const Options& options, const Memory& memory)
        : WorkerPool(options),
          ring_(memory.data, memory.lines, memory.held_max, memory.secret, memory.position),
          addr_(memory.addr),
          rkey_(memory.rkey) {}

    [[nodiscard]] const WriteRing& ring() const noexcept { return ring_; }
    [[nodiscard]] std::uint64_t addr() const noexcept { return addr_; }
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_; }

    /// A new writer begins: the peer of `qp`. From now on the worker looks at the ring. `in_order` is true if the
    /// device writes memory in order.
    void begin(Turn& turn, WorkerQp& qp, Flow& flow, bool in_order) noexcept;
    /// Returns true if messages may still come from the peer of `qp`, or if the final completion was not sent yet.
    [[nodiscard]] bool serves(const WorkerQp& qp) const noexcept { return qp_ == &qp; }
    /// Returns true if the next record has begun to arrive.
    [[nodiscard]] [[gnu::always_inline]] bool begun() const noexcept { return ring_.begun(); }
    /// Hands out the records that have arrived, at most a burst. If the queue pair is in error and there was no record,
    /// sends the final completion. While the application has `held_max` records, does nothing. Returns the number of
    /// records.
    std::uint32_t take_records(Turn& turn) noexcept;
    /// Called when the life of the queue pair ends. The ring goes on with the next writer.
    void leave(Turn& turn) noexcept;
    /// Called when the writer was told that it may fill all positions before `told`.
    void set_told(std::uint32_t told) noexcept { told_ = told; }

    void release(Turn& turn, std::span<const std::uint32_t> places) noexcept override;
    [[nodiscard]] std::vector<HeldBuffer> held() const override { return ring_.held(); }
    [[nodiscard]] std::uint32_t message_max() const noexcept override { return ring_.message_max(); }

    Due due;  ///< this ring's place in Turn::rings

private:
    void tell_end(Turn& turn) noexcept;
    void hand_out(Turn& turn, std::uint32_t place, Completion& completion) noexcept;

    WriteRing ring_;
    // queue pair whose peer writes here; null if there is none, or if its final completion was sent
    WorkerQp* qp_ = nullptr;
    Flow* flow_ = nullptr;  // the flow control of qp_
    std::uint32_t told_ = 0;
    std::uint64_t addr_;
    std::uint32_t rkey_;
};

}  // namespace pollcore
