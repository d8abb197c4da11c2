// The cache lines to which a provider writes the next work request of a send queue. A worker prefetches these lines
// before it posts (D12).
//
// Thread safety: the provider owns the memory. The thread that posts writes it, and so does a thread that resets or
// destroys the QP.
#pragma once

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>

namespace pollcore {

/// The layout of mlx5 (mlx5dv_init_obj(3), struct mlx5dv_qp): a ring of blocks, and a doorbell record that counts the
/// blocks posted so far.
class SendQueueLines {
public:
    static constexpr std::size_t kBlock = 64;

    /// An object whose lines are not known.
    SendQueueLines() = default;
    /// `posted` points to the doorbell record's count, which is big endian. `n` is the number of blocks, a power of
    /// two.
    SendQueueLines(const std::uint32_t* posted, const void* blocks, std::uint32_t n) noexcept
        : posted_(posted), blocks_(static_cast<const std::byte*>(blocks)), mask_(n - 1) {}

    [[nodiscard]] bool known() const noexcept { return posted_ != nullptr; }
    void prefetch_posted() const noexcept { __builtin_prefetch(posted_, 1); }
    /// Returns the address at which the next work request begins. Reads the doorbell record. So the QP must exist, and
    /// nobody may reset or destroy it during the call.
    [[nodiscard]] const std::byte* next_block() const noexcept { return blocks_ + (ntohl(*posted_) & mask_) * kBlock; }
    void prefetch_next_block() const noexcept { __builtin_prefetch(next_block(), 1); }

private:
    const std::uint32_t* posted_ = nullptr;
    const std::byte* blocks_ = nullptr;
    std::uint32_t mask_ = 0;
};

}  // namespace pollcore
