// The lines of memory in which a provider posts the next work request of a send queue: a worker fetches them before it
// posts.
//
// Thread safety: the memory is the provider's. The thread that posts writes it, and a thread that resets or destroys
// the QP.
#pragma once

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>

namespace pollcore {

/// As mlx5 has it (mlx5dv_init_obj(3), struct mlx5dv_qp): a ring of blocks, and a doorbell record that says how many of
/// them were posted.
class SendQueueLines {
public:
    static constexpr std::size_t kBlock = 64;

    /// Not known.
    SendQueueLines() = default;
    /// `posted`: the doorbell record's count, big endian. `n` blocks, a power of two.
    SendQueueLines(const std::uint32_t* posted, const void* blocks, std::uint32_t n) noexcept
        : posted_(posted), blocks_(static_cast<const std::byte*>(blocks)), mask_(n - 1) {}

    [[nodiscard]] bool known() const noexcept { return posted_ != nullptr; }
    void prefetch_posted() const noexcept { __builtin_prefetch(posted_, 1); }
    /// Where the next work request begins. Reads the doorbell record: the QP is there, and nobody resets or destroys it
    /// meanwhile.
    [[nodiscard]] const std::byte* next_block() const noexcept { return blocks_ + (ntohl(*posted_) & mask_) * kBlock; }
    void prefetch_next_block() const noexcept { __builtin_prefetch(next_block(), 1); }

private:
    const std::uint32_t* posted_ = nullptr;
    const std::byte* blocks_ = nullptr;
    std::uint32_t mask_ = 0;
};

}  // namespace pollcore
