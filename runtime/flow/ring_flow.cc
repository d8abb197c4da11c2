#include "flow/ring_flow.hpp"

#include <cstring>

namespace pollcore {

constinit const FlowKind flow_kinds::ring{
    .send_entries = BlockFlow::kWritesMax,
    .sges = 1,
    .inline_bytes = [](std::uint32_t length) { return length != 0 ? record_bytes(length) : 0; },
    .entry_bytes = sizeof(RecordFrame),
    .access = {.write = true},
    .without = static_cast<OpcodeMask>(opcode_bit(Opcode::rdma_write_with_imm) | opcode_bit(Opcode::send_with_inv)),
    .terms =
        [](const FlowParts& parts) {
            return parts.ring == nullptr ? FlowTerms{}
                                         : FlowTerms{.depth = parts.ring->ring().lines(),
                                                     .message_max = parts.ring->message_max(),
                                                     .ring_addr = parts.ring->addr(),
                                                     .ring_rkey = parts.ring->rkey()};
        },
    .make = [](WorkerQp& qp, FlowParts& parts) -> std::unique_ptr<Flow> {
        return std::make_unique<RingFlow>(qp, parts);
    }};

RingFlow::RingFlow(WorkerQp& qp, FlowParts& parts)
    : BlockFlow(qp, parts),
      frames_{reinterpret_cast<RecordFrame*>(parts.entries), parts.entry_count, parts.entries_lkey},
      pool_(parts.ring) {
    set_frames();
}

void RingFlow::begin_life(Turn& turn) noexcept {
    target_ = {};
    BlockFlow::begin_life(turn);
}

// In the steps that follow, turn() hands out the messages that came before the error, and then the final completion.
void RingFlow::end_life(Turn& turn) noexcept {
    if (receives()) {
        turn.flows.add(*this);
    }
}

void RingFlow::leave(Turn& turn) noexcept {
    if (receives()) {
        pool_->leave(turn);
    }
}

// ---- As a sender ----

/// From now on, records go to the ring that the peer's terms name.
void RingFlow::take_terms(const FlowTerms& terms) noexcept {
    target_ = {.addr = terms.ring_addr,
               .rkey = terms.ring_rkey,
               .lines = terms.depth,
               .seed = terms.ring_seed,
               .sums = (terms.features & FlowTerms::kInOrder) == 0};
    set_consumed(terms.ring_position);
}

/// Takes credit for the record's lines in the peer's ring. A record does not wrap: if too few lines are left in this
/// lap, the record skips them, and takes credit for them, too.
[[gnu::always_inline]] inline bool RingFlow::take_lines(std::uint32_t length) noexcept {
    const std::uint32_t lines = record_lines(length);
    const std::uint32_t to_end = target_.lines - (consumed() & (target_.lines - 1));
    const std::uint32_t skipped = lines > to_end ? to_end : 0;
    if (!take_credit(lines + skipped)) {
        return false;
    }
    next_ = {.length = length, .position = consumed() - lines, .skipped = skipped};
    return true;
}

bool RingFlow::consume(std::uint32_t length) noexcept {
    return take_lines(length);
}

bool RingFlow::hold(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                    std::size_t slot) noexcept {
    return hold_unless([this](std::uint32_t length) { return take_lines(length); }, turn, session, share, request,
                       slot);
}

/// Turns `wr`, which holds a gathered send, into the RDMA write of a record, at the place that take_lines() has chosen.
void RingFlow::frame(ibv_send_wr& wr, const WorkRequest& request, std::uint32_t position) noexcept {
    const std::uint32_t length = next_.length;
    const std::uint32_t at = next_.position;
    const RecordHeader header{.length = length,
                              .skipped = next_.skipped,
                              .with_imm = has_imm(request.opcode),
                              .imm_data = has_imm(request.opcode) ? request.imm_data : 0};
    const RecordHeader::Words words = header.pack(at, target_.seed);
    const std::uint64_t seal = seal_of(words, target_.seed, target_.sums ? request.payload_sum : 0);
    const std::uint32_t bytes = record_bytes(length);
    const std::uint32_t zeros = bytes - kRecordTail - length;
    if ((request.flags & kInline) != 0) {
        auto* tail = reinterpret_cast<std::byte*>(wr.sg_list->addr) + length + zeros;
        if (zeros != 0) {
            // Change the last word of the payload by one load and one store. The word is read again in one load, which
            // would wait until smaller stores have left the store buffer (D10).
            std::uint64_t last = 0;
            std::memcpy(&last, tail - sizeof(last), sizeof(last));
            last &= ~std::uint64_t{0} >> 8 * zeros;
            std::memcpy(tail - sizeof(last), &last, sizeof(last));
        }
        std::memcpy(tail, words.data(), sizeof(words));
        std::memcpy(tail + sizeof(words), &seal, sizeof(seal));
        wr.sg_list->length = bytes;
    } else {
        RecordFrame& frame = frames_.frames[position & (frames_.count - 1)];
        frame.words = words;
        frame.seal = seal;
        wr.sg_list[wr.num_sge] = {.addr = reinterpret_cast<std::uintptr_t>(&frame.words) - zeros,
                                  .length = zeros + kRecordTail,
                                  .lkey = frames_.lkey};
        ++wr.num_sge;
    }
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags &= ~unsigned{IBV_SEND_SOLICITED};
    wr.imm_data = 0;
    wr.wr.rdma.remote_addr =
        target_.addr + std::uint64_t{target_.lines - (at & (target_.lines - 1))} * kCacheLine - bytes;
    wr.wr.rdma.rkey = target_.rkey;
}

// ---- As a receiver ----

/// Puts our own ring into the terms that are about to be sent. The worker polls the ring from now on.
void RingFlow::complete_terms(Turn& turn, FlowTerms& terms) noexcept {
    terms.features = FlowTerms::kRing;
    if (pool_ == nullptr) {
        return;
    }
    pool_->begin(turn, qp(), *this, BlockFlow::start().in_order);
    terms.features |= BlockFlow::start().in_order ? FlowTerms::kInOrder : 0;
    terms.ring_seed = pool_->ring().seed();
    terms.ring_position = pool_->ring().next();
    set_told(terms.ring_position);
    offer(pool_->ring().granted());
    pool_->set_told(offered());
}

bool RingFlow::turn(Turn& turn, std::uint32_t& work) noexcept {
    if (!receives()) {
        return BlockFlow::turn(turn, work);
    }
    if (qp().in_error()) {
        work += pool_->take_records(turn);
        return receives();
    }
    // Freed lines are granted to the writer a quarter of the ring at a time. The writer has room for any message while
    // at most a quarter of the ring is freed but not granted.
    if (pool_->ring().granted() - told() >= pool_->ring().lines() / 4) {
        offer(pool_->ring().granted());
        pool_->set_told(offered());
    }
    return BlockFlow::turn(turn, work);
}

}  // namespace pollcore
