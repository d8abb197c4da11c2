#include "session/accounts.hpp"

#include <limits>

namespace pollcore {

[[gnu::noinline]] void QpAccount::learn(std::uint64_t status, OpcodeMask opcodes, std::uint32_t send_depth) noexcept {
    constexpr OpcodeMask kSends =
        opcode_bit(Opcode::send) | opcode_bit(Opcode::send_with_imm) | opcode_bit(Opcode::send_with_inv);
    const auto qp = QpStatusWord::unpack(status);
    const bool plain = qp.sges_max > 0 && (qp.flags & QpStatusWord::kSums) == 0;
    const auto ordinary = plain ? static_cast<OpcodeMask>(opcodes & RequestHead::kOrdinary) : OpcodeMask{0};
    known_status_ = status;
    short_ = (qp.flags & QpStatusWord::kFlow) != 0 ? static_cast<OpcodeMask>(ordinary & kSends) : OpcodeMask{0};
    ordinary_ = static_cast<OpcodeMask>(ordinary & ~short_);
    // admit() decides on the last requests of a deeper share.
    send_depth_ =
        static_cast<std::uint16_t>(std::min<std::uint32_t>(send_depth, std::numeric_limits<std::uint16_t>::max()));
    inline_max_ = qp.inline_max;
}

[[gnu::noinline]] void Accounts::refresh_retired(QpHandle qp) noexcept {
    QpAccount& mine = renewed(qp);
    if (const RetiredWord now = retired_word(qp.index);
        now.generation == qp.generation) {  // otherwise the queue pair was reset meanwhile
        mine.retire(now.count);
    }
}

void Accounts::count_shared(SrqHandle srq) noexcept {
    SrqAccount& mine = srqs_[srq.index];
    if (mine.generation != srq.generation) {
        mine = {.generation = srq.generation};
    }
    ++mine.outstanding;
}

}  // namespace pollcore
