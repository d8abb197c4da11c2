// Messages by write rings: records on their way into the peer's ring, and those that are found in ours.
//
// As a sender a ring is a matter of credits: what the peer has read is granted again, in lines, and what finds no room waits
// with everything behind it (credits.cc). As a receiver the worker looks at memory, once for each look at the CQs.
#include <algorithm>
#include <cstring>

#include "worker/worker.hpp"

namespace pollcore {

// ---- As a sender ----

/// From here on records go to the ring that the peer's terms name.
void Worker::aim(CreditFlow& flow, const FlowTerms& terms) noexcept {
    flow.target = {.addr = terms.ring_addr,
                   .rkey = terms.ring_rkey,
                   .lines = terms.depth,
                   .seed = terms.ring_seed,
                   .sums = (terms.features & FlowTerms::kInOrder) == 0};
    flow.granted = flow.consumed = terms.ring_position;
}

/// Makes the send of what `wr` has gathered a write of a record, in the room that it was given. An SGE behind those of the payload is free,
/// and where the payload is inline, what stands behind it.
void Worker::frame(WorkerQp& qp, ibv_send_wr& wr, const WorkRequest& request, std::uint32_t position) noexcept {
    std::uint32_t length = 0;
    for (int i = 0; i < wr.num_sge; ++i) {
        length += wr.sg_list[i].length;
    }
    const CreditFlow& flow = *qp.flow;
    const RingTarget& target = flow.target;
    const std::uint32_t lines = record_lines(length);
    const std::uint32_t at = flow.consumed - lines;
    const RecordHeader header{.length = length,
                              .skipped = target.skipped,
                              .with_imm = has_imm(request.opcode),
                              .imm_data = has_imm(request.opcode) ? request.imm_data : 0};
    const RecordHeader::Words words = header.pack(at, target.seed);
    const std::uint64_t seal = seal_of(words, target.seed, target.sums ? request.payload_sum : 0);
    const std::uint32_t bytes = record_bytes(length);
    const std::uint32_t zeros = bytes - kRecordTail - length;
    if ((request.flags & kInline) != 0) {
        auto* tail = reinterpret_cast<std::byte*>(wr.sg_list->addr) + length + zeros;
        if (zeros != 0) {
            // A whole word, as it was written and will be read: smaller stores would have to leave the store buffer first.
            std::uint64_t last = 0;
            std::memcpy(&last, tail - sizeof(last), sizeof(last));
            last &= ~std::uint64_t{0} >> 8 * zeros;
            std::memcpy(tail - sizeof(last), &last, sizeof(last));
        }
        std::memcpy(tail, words.data(), sizeof(words));
        std::memcpy(tail + sizeof(words), &seal, sizeof(seal));
        wr.sg_list->length = bytes;
    } else {
        RecordFrame& frame = flow.frames[position & flow.frames_mask];
        frame.words = words;
        frame.seal = seal;
        wr.sg_list[wr.num_sge] = {.addr = reinterpret_cast<std::uintptr_t>(&frame.words) - zeros,
                                  .length = zeros + kRecordTail,
                                  .lkey = flow.frames_lkey};
        ++wr.num_sge;
    }
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags &= ~unsigned{IBV_SEND_SOLICITED};
    wr.imm_data = 0;
    wr.wr.rdma.remote_addr = target.addr + std::uint64_t{target.lines - (at & (target.lines - 1))} * kCacheLine - bytes;
    wr.wr.rdma.rkey = target.rkey;
}

/// The provider refused a request of a chain with records. `chain`, which stands behind it, does not go either: the peer would wait
/// for ever for a record that is missing, and frames are found by positions, which have moved.
[[gnu::cold]] void Worker::break_off(WorkerQp& qp, const ibv_send_wr* chain) noexcept {
    for (const ibv_send_wr* wr = chain; wr != nullptr; wr = wr->next) {
        InFlightEntry& entry = qp.sends.at(qp.sends.head_position() + qp.sends.offset_of(WrId::unpack(wr->wr_id).position));
        entry.kind = InFlightEntry::Kind::unposted;
        entry.status = Status::wr_flush_err;
    }
    fail_flow(qp, FlowFault::post_refused);
    drain_unposted(qp, qp.sends);
}

// ---- As a receiver ----

/// Our own ring stands in the terms that are sent next, and is looked at from now on.
void Worker::offer_ring(WorkerQp& qp) noexcept {
    CreditFlow& flow = *qp.flow;
    flow.own.features = FlowTerms::kRing;
    WorkerPool* pool = qp.pool.pool;
    if (pool == nullptr) {
        return;
    }
    WriteRing& ring = *pool->ring;
    ring.begin(qp.handle, flow.in_order);
    flow.own.features |= flow.in_order ? FlowTerms::kInOrder : 0;
    flow.own.ring_seed = ring.seed();
    flow.own.ring_position = flow.told = ring.next();
    flow.posted = ring.granted();
    if (pool->ring_qp != &qp) {
        pool->ring_qp = &qp;
        rings_.push_back({&qp, &ring});
    }
}

/// Something has come to the ring, or its queue pair is in error.
[[gnu::noinline]] std::uint32_t Worker::take_records(WorkerQp& qp) noexcept {
    WorkerPool& pool = *qp.pool.pool;
    WriteRing& ring = *pool.ring;
    if (pool.session->broken()) [[unlikely]] {
        return 0;
    }
    pool.session->prefetch_completions();  // as in route()
    std::uint32_t taken = 0;
    WriteRing::Record record;
    while (taken < turn_.options.complete_burst && !ring.full()) {
        const WriteRing::Look look = ring.look(record);
        if (look != WriteRing::Look::record) {
            if (look == WriteRing::Look::lie) [[unlikely]] {
                fail_flow(qp, FlowFault::too_many_messages);
            }
            if (qp.state == QpState::error && taken == 0) [[unlikely]] {
                tell_ring_end(qp);
            }
            break;
        }
        Completion completion;
        completion.qp = qp.handle;
        completion.byte_len = record.header.length;
        completion.imm_data = record.header.imm_data;
        completion.flags = record.header.with_imm ? kWithImm : 0;
        hand_out(pool, record.place, completion);  // the application first
        ring.hand_out(record);
        ++taken;
    }
    if (taken != 0) {
        pool.counters->delivered.add(taken);
        pool.counters->torn.raise_to(ring.torn());
        turn_.counters.completions.add(taken);
    }
    return taken;
}

// What a queue pair in error had received is delivered; one completion says that no more comes.
[[gnu::cold]] void Worker::tell_ring_end(WorkerQp& qp) noexcept {
    WorkerPool& pool = *qp.pool.pool;
    if (!pool.ring->hold_end()) {
        return;  // the last one is still with the application
    }
    pool.ring_qp = nullptr;
    std::erase(rings_, WatchedRing{&qp, pool.ring.get()});
    Completion completion;
    completion.qp = qp.handle;
    completion.status = qp.cause == Status::success ? Status::wr_flush_err : qp.cause;
    completion.flags = kByRuntime;
    hand_out(pool, WriteRing::kEnd, completion);
}

/// The application gives messages back.
void Worker::release_records(WorkerPool& pool, std::span<const std::uint32_t> places) noexcept {
    for (const std::uint32_t place : places) {
        const bool had_it = pool.ring->release(place);
        (had_it ? pool.counters->released : pool.counters->bad_releases).add();
        pool.counters->held.add(had_it ? -1 : 0);
        if (!had_it) {
            pool.session->count_refused();
        }
    }
    // Told a quarter at a time: a writer has room for any message as long as the last quarter is all that it does not know of.
    WorkerQp* qp = pool.ring_qp;
    if (qp != nullptr && pool.ring->granted() - qp->flow->told >= pool.ring->lines() / 4) {
        qp->flow->posted = pool.ring->granted();
        list(*qp);
    }
}

/// The queue pair's life is over; its ring goes on with the next.
void Worker::leave_ring(WorkerQp& qp) noexcept {
    while (in_ring(qp) && take_records(qp) != 0) {
    }
    if (in_ring(qp)) {  // an end that cannot be told is not
        qp.pool.pool->ring_qp = nullptr;
        std::erase(rings_, WatchedRing{&qp, qp.pool.pool->ring.get()});
    }
}

}  // namespace pollcore
