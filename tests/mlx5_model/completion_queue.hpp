// The NIC's state of a completion queue: the place of the next CQE, and whether the CQ is armed.
#pragma once

#include <cstdint>
#include <memory>

#include <infiniband/mlx5dv.h>

#include "hca_event_queue.hpp"

namespace mlx5_model {

class UverbsFile;

/// The memory that CREATE_CQ passes to the kernel.
struct CompletionQueueMemory {
    std::uint8_t* entries = nullptr;
    volatile std::uint32_t* doorbells = nullptr;  ///< consumer index and arming, both big endian
    std::uint32_t entry_size = 64;
    std::uint32_t entry_count = 0;
};

/// Not thread-safe: callers hold the fabric's lock.
class CompletionQueue {
public:
    CompletionQueue(UverbsFile* file, std::uint32_t number, std::uint64_t user_handle,
                    const CompletionQueueMemory& memory, std::shared_ptr<EventQueue> channel);

    [[nodiscard]] UverbsFile* file() const noexcept { return file_; }
    [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
    /// Most payload bytes that a CQE can hold, instead of the receiver's memory.
    [[nodiscard]] std::uint32_t scatter_max() const noexcept { return memory_.entry_size == 128 ? 64 : 32; }

    /// Writes `cqe` to the queue with the owner bit and, if `solicited`, the solicited bit. Does nothing if the CQ is
    /// lost. Also sets the time, unless the CQE reports an error. `payload` goes into the CQE if `bytes` is more than
    /// 0. If the CQ is full, drops the CQE, and calls lose().
    void write(mlx5_cqe64 cqe, const void* payload, std::uint32_t bytes, bool solicited, std::uint64_t now_ns);
    /// Puts the CQ into the state that an overrun causes, and raises IBV_EVENT_CQ_ERR.
    void lose();
    [[nodiscard]] bool lost() const noexcept { return lost_; }
    /// Puts an event into the channel if the CQ is armed, a CQE of the armed kind was written, and the moderation
    /// permits an event now.
    void fire(std::uint64_t now_ns);
    void moderate(std::uint16_t count, std::uint16_t period_us) noexcept;

    /// Numbers of the CQ's events that the program has read. forget_events() drops the unread events. Call it before
    /// the CQ is destroyed.
    struct Read {
        std::uint32_t completion_events = 0;
        std::uint32_t async_events = 0;
    };
    Read forget_events();

private:
    [[nodiscard]] std::uint32_t consumer_index() const;

    UverbsFile* file_;
    std::uint32_t number_;
    std::uint64_t user_handle_;
    CompletionQueueMemory memory_;
    std::shared_ptr<EventQueue> channel_;
    Reported completion_events_ = none_reported();
    Reported async_events_ = none_reported();
    std::uint32_t producer_index_ = 0;
    std::uint32_t solicited_index_ = 0;  // index after the last solicited CQE
    std::uint32_t fired_sequence_ = ~0u;
    std::uint64_t waiting_since_ns_ = 0;  // time of the first CQE that no event has announced; 0: there is none
    std::uint16_t moderation_count_ = 0;
    std::uint16_t moderation_period_us_ = 0;
    bool lost_ = false;
};

}  // namespace mlx5_model
