// The last eight bytes of a work request as one word: queue pair, opcode, flags and number of SGEs. One comparison of
// this word tells whether the request is an ordinary one.
//
// Thread safety: pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "pollcore/handle.hpp"
#include "pollcore/words.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

/// A handle as a number, with the same bytes as in records.
[[nodiscard]] constexpr std::uint32_t bits_of(QpHandle handle) noexcept {
    return std::bit_cast<std::uint32_t>(handle);
}

class RequestHead {
public:
    /// The index of the head among the words of the request.
    static constexpr std::size_t kWord = offsetof(WorkRequest, qp) / sizeof(std::uint64_t);
    static constexpr unsigned kOpcode = 8 * (offsetof(WorkRequest, opcode) % sizeof(std::uint64_t));
    static constexpr unsigned kFlags = 8 * (offsetof(WorkRequest, flags) % sizeof(std::uint64_t));
    static constexpr unsigned kNumSge = 8 * (offsetof(WorkRequest, num_sge) % sizeof(std::uint64_t));
    static_assert(kOpcode == 32 && kFlags == 40 && kNumSge == 48 && offsetof(WorkRequest, ring_lap) == 63);

    // Two bits beside the caller's flags (D50). The session sets kReplyInLine if the worker may write the completion
    // into the request's own cache line (worker/worker_session.hpp). The worker sets kReplied after it has written the
    // completion there.
    static constexpr std::uint8_t kReplyInLine = 1 << 6;
    static constexpr std::uint8_t kReplied = 1 << 7;
    /// The index of the word that contains the answer: Completion::byte_len in the lower half, sampled_at in the upper
    /// half.
    static constexpr std::size_t kReplyWord = offsetof(WorkRequest, swap) / sizeof(std::uint64_t);
    static_assert(((kFence | kSignaled | kSolicited | kInline) & (kReplyInLine | kReplied)) == 0);

    /// Opcodes of requests that may be answered in their own line: a successful completion adds only a length to the
    /// request.
    static constexpr OpcodeMask kRepliable = kInlineOpcodes | opcode_bit(Opcode::rdma_read) |
                                             opcode_bit(Opcode::atomic_cmp_and_swp) |
                                             opcode_bit(Opcode::atomic_fetch_and_add);

    /// Opcodes of ordinary requests: their only operands are an address, a key, and an immediate or a second key.
    static constexpr OpcodeMask kOrdinary = opcode_bit(Opcode::rdma_write) | opcode_bit(Opcode::rdma_write_with_imm) |
                                            opcode_bit(Opcode::send) | opcode_bit(Opcode::send_with_imm) |
                                            opcode_bit(Opcode::rdma_read) | opcode_bit(Opcode::send_with_inv);

    constexpr explicit RequestHead(std::uint64_t word) noexcept : word_(word) {}

    [[nodiscard]] constexpr std::uint64_t word() const noexcept { return word_; }
    [[nodiscard]] constexpr std::uint32_t qp_bits() const noexcept { return static_cast<std::uint32_t>(word_); }
    [[nodiscard]] constexpr std::uint16_t qp_index() const noexcept { return static_cast<std::uint16_t>(word_); }
    [[nodiscard]] constexpr std::uint16_t qp_generation() const noexcept {
        return static_cast<std::uint16_t>(word_ >> 16);
    }
    [[nodiscard]] constexpr Opcode opcode() const noexcept { return static_cast<Opcode>(word_ >> kOpcode & 0xff); }
    [[nodiscard]] constexpr unsigned flags() const noexcept { return static_cast<unsigned>(word_ >> kFlags & 0xff); }
    [[nodiscard]] constexpr std::uint32_t num_sge() const noexcept {
        return static_cast<std::uint32_t>(word_ >> kNumSge & 0xff);
    }

    /// Whether the request has one of the first sixteen opcodes, at most one SGE, and no flag other than those of
    /// SendFlag and kReplyInLine. `but` has further flags that the request must not have. is_one_of() may be called
    /// only if is_plain() is true.
    [[nodiscard]] constexpr bool is_plain(unsigned but = 0) const noexcept { return (word_ & not_plain(but)) == 0; }
    /// Whether is_plain() is true and the request has exactly one SGE.
    [[nodiscard]] constexpr bool is_plain_with_sge(unsigned but) const noexcept {
        constexpr std::uint64_t kOne = std::uint64_t{1} << kNumSge;
        return (word_ & (not_plain(but) | kOne)) == kOne;
    }
    [[nodiscard]] constexpr bool is_one_of(OpcodeMask opcodes) const noexcept {
        return (opcodes >> (word_ >> kOpcode & 31) & 1) != 0;
    }

    /// Whether the request invalidates a key or has kReplyInLine. Its opcode must be one of kOrdinary.
    [[nodiscard]] constexpr bool invalidates_or_replies() const noexcept {
        constexpr std::uint32_t kBit = 8;  // among ordinary opcodes, only this one has the bit
        static_assert(kOrdinary >> kBit == 1 << (static_cast<unsigned>(Opcode::send_with_inv) - kBit));
        return (static_cast<std::uint32_t>(word_ >> kOpcode) &
                (kBit | std::uint32_t{kReplyInLine} << (kFlags - kOpcode))) != 0;
    }

    /// The head of this request with an inline payload.
    [[nodiscard]] constexpr RequestHead as_inline() const noexcept {
        return RequestHead((word_ & ~(std::uint64_t{0xff} << kNumSge)) | std::uint64_t{kInline} << kFlags);
    }

private:
    [[nodiscard]] static constexpr std::uint64_t not_plain(unsigned but) noexcept {
        return std::uint64_t{0xf0} << kOpcode | std::uint64_t{0xfe} << kNumSge |
               ((0xff & ~std::uint64_t{kFence | kSignaled | kSolicited | kInline | kReplyInLine}) | but) << kFlags;
    }

    std::uint64_t word_;
};

[[nodiscard]] inline RequestHead head_of(const WorkRequest& request) noexcept {
    return RequestHead(words_of(const_cast<WorkRequest&>(request))[RequestHead::kWord]);
}

}  // namespace pollcore
