// A completion queue as the NIC has it: where the next CQE goes, what was armed.
#pragma once

#include <cstdint>
#include <memory>

#include <infiniband/mlx5dv.h>

#include "hca_event_queue.hpp"

namespace mlx5_model {

class UverbsFile;

/// The memory that CREATE_CQ hands over.
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

    /// Writes `cqe` to the queue; adds the owner bit, the solicited bit and, unless it reports an error, the time.
    /// `payload` goes into the CQE if `bytes` is more than 0. A full CQ is lost: the entry is dropped and
    /// IBV_EVENT_CQ_ERR raised.
    void write(mlx5_cqe64 cqe, const void* payload, std::uint32_t bytes, bool solicited, std::uint64_t now_ns);
    /// Puts the CQ into the state that an overrun causes.
    void lose();
    [[nodiscard]] bool lost() const noexcept { return lost_; }
    /// Puts an event into the channel if the CQ is armed for a CQE that has come.
    void fire(std::uint64_t now_ns);
    void moderate(std::uint16_t count, std::uint16_t period_us) noexcept;

    /// How many events of the CQ were read. forget_events() takes back the others, before the CQ is destroyed.
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
    std::uint32_t solicited_index_ = 0;  // behind the last solicited CQE
    std::uint32_t fired_sequence_ = ~0u;
    std::uint64_t waiting_since_ns_ = 0;  // time of the first CQE that no event has announced; 0: none
    std::uint16_t moderation_count_ = 0;
    std::uint16_t moderation_period_us_ = 0;
    bool lost_ = false;
};

}  // namespace mlx5_model
