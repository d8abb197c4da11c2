// Reads send WQEs as the NIC does: takes them from the ring, checks them, and decodes their fields.
#pragma once

#include <cstdint>
#include <optional>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include "memory_keys.hpp"
#include "receive_queue.hpp"

namespace mlx5_model {

/// One send WQE. Only the fields that its opcode uses are set.
struct SendWqe {
    static constexpr int kSegmentsMax = 62;
    static constexpr std::size_t kBytesMax = 1024;

    std::uint16_t index = 0;  ///< index of its first 64-byte block
    std::uint16_t blocks = 0;
    std::uint8_t opcode = 0;  ///< MLX5_OPCODE_...
    bool signaled = false;
    bool solicited = false;
    bool fenced = false;
    std::uint32_t immediate = 0;  ///< in network byte order, as in the WQE
    std::uint64_t remote_address = 0;
    std::uint32_t rkey = 0;
    std::uint64_t swap_add = 0;
    std::uint64_t compare = 0;
    std::uint32_t dest_qpn = 0;  ///< the destination of a datagram
    std::uint32_t qkey = 0;
    ibv_gid dest_gid{};
    BindRequest bind;
    bool is_inline = false;
    std::uint32_t inline_bytes = 0;
    std::uint8_t inline_data[kBytesMax];
    int segment_count = 0;
    DataSegment segments[kSegmentsMax];

    [[nodiscard]] std::uint64_t length() const noexcept;
    [[nodiscard]] bool takes_receive() const noexcept;
    [[nodiscard]] bool answers_with_data() const noexcept;  ///< true for a read or an atomic
};

/// The memory that CREATE_QP passes to the kernel.
struct SendQueueMemory {
    const std::uint8_t* wqes = nullptr;
    std::uint32_t block_count = 0;
    const volatile std::uint32_t* doorbell = nullptr;
    /// the page where doorbells ring; if null, the model does not look at doorbells
    const volatile std::uint8_t* uar = nullptr;
};

struct DoorbellCounts {
    std::uint64_t records = 0;    ///< changes of the doorbell record that the model has seen
    std::uint64_t rung = 0;       ///< changes for which the UAR contained the doorbell
    std::uint64_t blueflame = 0;  ///< changes for which the UAR contained the whole WQE
};

/// Not thread-safe: callers hold the fabric's lock. Aborts on a WQE or a doorbell record that hardware would not
/// accept.
class SendQueue {
public:
    SendQueue(std::uint32_t qpn, ibv_qp_type type, const SendQueueMemory& memory);

    /// Returns the next WQE to carry out; null if there is none. Returns the same WQE until done() is called.
    const SendWqe* next();
    void done();
    [[nodiscard]] bool empty() const;
    void reset() noexcept;
    [[nodiscard]] const DoorbellCounts& doorbells() const noexcept { return doorbells_; }

private:
    [[nodiscard]] std::uint16_t posted() const;
    void look_for_doorbell(std::uint16_t posted);
    void read(std::uint16_t posted);

    std::uint32_t qpn_;
    ibv_qp_type type_;
    SendQueueMemory memory_;
    DoorbellCounts doorbells_;
    std::uint16_t consumed_ = 0;
    std::uint16_t last_posted_ = 0;
    bool has_ = false;
    SendWqe wqe_;
};

}  // namespace mlx5_model
