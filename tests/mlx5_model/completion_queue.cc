// Formats and rules: Mellanox Adapters Programmer's Reference Manual, "Completion Queues", as far as libmlx5 uses them.
#include "completion_queue.hpp"

#include <endian.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include <infiniband/verbs.h>

#include "refuse.hpp"
#include "uverbs_file.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kIndexMask = 0xffffff;
constexpr int kConsumerIndex = 0;
constexpr int kArm = 1;
constexpr std::uint32_t kNeverArmed = ~0u;
constexpr std::uint32_t kArmSolicited = 1u << 24;
constexpr std::uint32_t kArmSequence = 3u << 28;

std::uint8_t* last_byte(std::uint8_t* entries, std::uint32_t entry_size, std::uint32_t index) {
    return entries + std::size_t{index} * entry_size + entry_size - 1;
}

}  // namespace

CompletionQueue::CompletionQueue(UverbsFile* file, std::uint32_t number, std::uint64_t user_handle,
                                 const CompletionQueueMemory& memory, std::shared_ptr<EventQueue> channel)
    : file_(file), number_(number), user_handle_(user_handle), memory_(memory), channel_(std::move(channel)) {
    require(memory.entry_size == 64 || memory.entry_size == 128, "CQ {:#x} has entries of {} bytes", number,
            memory.entry_size);
    require(std::has_single_bit(memory.entry_count), "CQ {:#x} has {} entries, which is no power of two", number,
            memory.entry_count);
    for (std::uint32_t i = 0; i < memory.entry_count; ++i) {
        require(*last_byte(memory.entries, memory.entry_size, i) >> 4 == MLX5_CQE_INVALID,
                "CQ {:#x}: entry {} was not given to the hardware", number, i);
    }
    // libmlx5 writes 0 to this field before it creates the CQ, and never reads the field. A 0 would count as an arming.
    memory_.doorbells[kArm] = kNeverArmed;
}

std::uint32_t CompletionQueue::consumer_index() const {
    const std::uint32_t index = be32toh(memory_.doorbells[kConsumerIndex]);
    require((index & ~kIndexMask) == 0,
            "CQ {:#x}: the doorbell record has the consumer index {:#x}, of more than 24 bits", number_, index);
    const std::uint32_t behind = (producer_index_ - index) & kIndexMask;
    require(behind <= memory_.entry_count, "CQ {:#x}: {} of {} CQEs were consumed", number_, index,
            producer_index_ & kIndexMask);
    return index;
}

void CompletionQueue::write(mlx5_cqe64 cqe, const void* payload, std::uint32_t bytes, bool solicited,
                            std::uint64_t now_ns) {
    if (lost_) {
        return;
    }
    if (((producer_index_ - consumer_index()) & kIndexMask) >= memory_.entry_count) {
        lose();
        return;
    }
    const std::uint32_t slot = producer_index_ & (memory_.entry_count - 1);
    std::uint8_t* const end = last_byte(memory_.entries, memory_.entry_size, slot) + 1;
    if (bytes > 32) {
        std::memcpy(end - 128, payload, bytes);
        cqe.op_own |= MLX5_INLINE_SCATTER_64;
    } else if (bytes > 0) {
        std::memcpy(&cqe, payload, bytes);
        cqe.op_own |= MLX5_INLINE_SCATTER_32;
    }
    // An error CQE has its syndromes in the place where other CQEs have the time.
    if (cqe.op_own >> 4 != MLX5_CQE_REQ_ERR && cqe.op_own >> 4 != MLX5_CQE_RESP_ERR) {
        cqe.timestamp = htobe64(now_ns);
    }
    cqe.op_own = static_cast<std::uint8_t>(cqe.op_own | (solicited ? 2 : 0) |
                                           ((producer_index_ & memory_.entry_count) != 0 ? MLX5_CQE_OWNER_MASK : 0));
    auto* const at = reinterpret_cast<mlx5_cqe64*>(end - sizeof cqe);
    std::memcpy(at, &cqe, sizeof cqe - 1);
    __atomic_store_n(&at->op_own, cqe.op_own, __ATOMIC_RELEASE);
    producer_index_ = (producer_index_ + 1) & (2 * (kIndexMask + 1) - 1);
    if (solicited) {
        solicited_index_ = producer_index_;
    }
    if (waiting_since_ns_ == 0) {
        waiting_since_ns_ = now_ns;
    }
}

void CompletionQueue::lose() {
    if (!lost_) {
        lost_ = true;
        file_->raise(IBV_EVENT_CQ_ERR, user_handle_, async_events_);
    }
}

void CompletionQueue::fire(std::uint64_t now_ns) {
    if (channel_ == nullptr || lost_) {
        return;
    }
    const std::uint32_t arm = be32toh(memory_.doorbells[kArm]);
    if (arm == kNeverArmed) {
        return;
    }
    require((arm & ~(kArmSequence | kArmSolicited | kIndexMask)) == 0, "CQ {:#x}: it was armed with {:#010x}", number_,
            arm);
    const std::uint32_t index = arm & kIndexMask;
    require(((producer_index_ - index) & kIndexMask) <= memory_.entry_count || fired_sequence_ == (arm & kArmSequence),
            "CQ {:#x}: it was armed for what follows CQE {}, and the next is {}", number_, index,
            producer_index_ & kIndexMask);
    if ((arm & kArmSequence) == fired_sequence_) {
        return;
    }
    const std::uint32_t come = ((arm & kArmSolicited) != 0 ? solicited_index_ : producer_index_) - index;
    if ((come & kIndexMask) == 0 || (come & kIndexMask) > kIndexMask / 2) {
        return;
    }
    const bool enough = moderation_count_ == 0 || (come & kIndexMask) >= moderation_count_ ||
                        now_ns - waiting_since_ns_ >= std::uint64_t{moderation_period_us_} * 1000;
    if (!enough) {
        return;
    }
    fired_sequence_ = arm & kArmSequence;
    waiting_since_ns_ = 0;
    channel_->push(user_handle_, completion_events_);
}

void CompletionQueue::moderate(std::uint16_t count, std::uint16_t period_us) noexcept {
    moderation_count_ = count;
    moderation_period_us_ = period_us;
}

CompletionQueue::Read CompletionQueue::forget_events() {
    if (channel_ != nullptr) {
        channel_->forget(completion_events_);
    }
    file_->forget(async_events_);
    return {completion_events_->load(), async_events_->load()};
}

}  // namespace mlx5_model
