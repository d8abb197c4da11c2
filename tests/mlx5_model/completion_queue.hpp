// A completion queue as the NIC has it: where the next CQE goes, what was armed.
#pragma once

#include <cstdint>
#include <memory>

#include <infiniband/mlx5dv.h>

#include "hca_event_queue.hpp"

namespace mlx5_model {

class UverbsFile;

/// What CREATE_CQ hands over.
struct CompletionQueueMemory {
    std::uint8_t* entries = nullptr;
    volatile std::uint32_t* doorbells = nullptr;  ///< consumer index, arming; big endian
    std::uint32_t entry_size = 64;
    std::uint32_t entry_count = 0;
};

/// Not thread-safe: the fabric's lock is held.
class CompletionQueue {
public:
    CompletionQueue(UverbsFile* file, std::uint32_t number, std::uint64_t user_handle,
                    const CompletionQueueMemory& memory, std::shared_ptr<EventQueue> channel);

    [[nodiscard]] UverbsFile* file() const noexcept { return file_; }
    [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
    /// Bytes that may be put into a CQE instead of memory.
    [[nodiscard]] std::uint32_t scatter_max() const noexcept { return memory_.entry_size == 128 ? 64 : 32; }

    /// Adds the owner bit and the number's place. `payload` goes into the CQE where `bytes` is more than 0. A CQ
    /// without room is lost: the entry is dropped and the event raised.
    void write(mlx5_cqe64 cqe, const void* payload, std::uint32_t bytes, bool solicited, std::uint64_t now_ns);
    /// As if it had overrun.
    void lose();
    [[nodiscard]] bool lost() const noexcept { return lost_; }
    /// Puts an event into the channel where the CQ is armed for what has come.
    void fire(std::uint64_t now_ns);
    void moderate(std::uint16_t count, std::uint16_t period_us) noexcept;

    /// Taken back before it is destroyed: how many events of its channel, and of its own, were read.
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
    std::uint32_t solicited_index_ = 0;  // behind the last solicited one
    std::uint32_t fired_sequence_ = ~0u;
    std::uint64_t waiting_since_ns_ = 0;  // the first that the channel has not been told of
    std::uint16_t moderation_count_ = 0;
    std::uint16_t moderation_period_us_ = 0;
    bool lost_ = false;
};

}  // namespace mlx5_model
