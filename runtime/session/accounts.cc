#include "session/accounts.hpp"

namespace pollcore {

[[gnu::noinline]] void QpAccount::learn(std::uint64_t status, OpcodeMask opcodes, std::uint32_t send_depth) noexcept {
    constexpr OpcodeMask kSends = opcode_bit(Opcode::send) | opcode_bit(Opcode::send_with_imm);
    static_assert(RequestHead::kOrdinary < 1u << kShort);
    const auto qp = QpStatusWord::unpack(status);
    const bool plain = qp.sges_max > 0 && (qp.flags & QpStatusWord::kSums) == 0;
    const auto ordinary = plain ? static_cast<OpcodeMask>(opcodes & RequestHead::kOrdinary) : OpcodeMask{0};
    const auto limited =
        (qp.flags & QpStatusWord::kFlow) != 0 ? static_cast<OpcodeMask>(ordinary & kSends) : OpcodeMask{0};
    known_status_ = status;
    ordinary_ = static_cast<OpcodeMask>((ordinary & ~limited) | limited << kShort);
    send_depth_ = send_depth;
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
