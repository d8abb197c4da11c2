// The wr_id of a posted work request. It contains the queue, the queue's generation and the place in the queue. So the
// worker finds the entry of a completion without the QP number (H3).
//
// Thread safety: pure.
#pragma once

#include <bit>
#include <cstdint>

#include "pollcore/handle.hpp"
#include "pollcore/limits.hpp"
#include "session/request_head.hpp"

namespace pollcore {

/// The wr_id of a request in a queue pair's send queue or receive queue.
struct WrId {
    QpHandle qp;
    bool recv = false;
    std::uint32_t position = 0;  ///< pack() stores only the low kPositionBits

    static constexpr unsigned kPositionBits = 24;
    static constexpr std::uint32_t kPositionMask = (1u << kPositionBits) - 1;

    [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
        return std::uint64_t{bits_of(qp)} << 32 | std::uint64_t{recv} << kPositionBits | (position & kPositionMask);
    }
    /// Does what pack() does for a send queue, from bits_of(qp).
    [[nodiscard]] static constexpr std::uint64_t pack_send(std::uint32_t qp_bits, std::uint32_t position) noexcept {
        return std::uint64_t{qp_bits} << 32 | (position & kPositionMask);
    }
    [[nodiscard]] static constexpr WrId unpack(std::uint64_t word) noexcept {
        return {std::bit_cast<QpHandle>(static_cast<std::uint32_t>(word >> 32)), (word >> kPositionBits & 1) != 0,
                static_cast<std::uint32_t>(word) & kPositionMask};
    }
};

/// The wr_id of a receive in a shared receive queue. It has the bit kMark, which a WrId never has.
struct SrqWrId {
    SrqHandle srq;
    std::uint32_t slot = 0;

    static constexpr std::uint64_t kMark = std::uint64_t{1} << 31;
    static constexpr std::uint64_t kRecv = WrId{.recv = true}.pack();  ///< set in the wr_id of every receive
    static_assert((WrId{QpHandle{0xffff, 0xffff}, true, WrId::kPositionMask}.pack() & kMark) == 0);
    static_assert(kQueueDepthMax - 1 <= WrId::kPositionMask);

    [[nodiscard]] static constexpr bool names(std::uint64_t word) noexcept { return (word & kMark) != 0; }
    [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
        return std::uint64_t{std::bit_cast<std::uint32_t>(srq)} << 32 | kMark | kRecv | slot;
    }
    [[nodiscard]] static constexpr SrqWrId unpack(std::uint64_t word) noexcept {
        return {std::bit_cast<SrqHandle>(static_cast<std::uint32_t>(word >> 32)),
                static_cast<std::uint32_t>(word) & WrId::kPositionMask};
    }
};

/// Returns true if the wr_id belongs to a request in a send queue.
[[nodiscard]] constexpr bool names_send(std::uint64_t word) noexcept {
    return (word & (SrqWrId::kMark | SrqWrId::kRecv)) == 0;
}

}  // namespace pollcore
