// The queue pairs of a SteppedWorld. They are made, connected and ended as the control side does it
// (runtime/control/queue_pairs.cc). This file is the second half of stepped_world.hpp, which includes it.
#pragma once

#include "stepped_world.hpp"

namespace pollcore::testing {

inline SteppedWorld::Qp& SteppedWorld::add_qp(const QpShape& shape) {
    auto qp = std::make_unique<Qp>();
    const FlowKind& flow = flow_kind(shape.flow);
    std::uint32_t send_depth = kMarkersPerQp + flow.send_entries;
    std::uint32_t recv_depth = 0;
    for (const ShareOptions& share : shape.shares) {
        send_depth += share.send_depth;
        recv_depth += share.recv_depth;
    }
    if (shape.pool.pool != nullptr && arrival_of(shape.flow) == Arrival::receives) {
        recv_depth = shape.pool.depth;
    }
    QpOptions make{.pd = pd_.get(),
                   .domain = domain_.get(),
                   .send_cq = verbs_cqs_[shape.send_cq].get(),
                   .recv_cq = verbs_cqs_[shape.recv_cq].get(),
                   .srq = shape.srq != nullptr ? shape.srq->srq.get() : nullptr,
                   .type = static_cast<ibv_qp_type>(shape.type),
                   .cap = {.max_send_wr = send_depth,
                           .max_recv_wr = std::max(recv_depth, 1u),
                           .max_send_sge = shape.sges_max + flow.sges,
                           .max_recv_sge = shape.sges_max,
                           .max_inline_data = flow.inline_bytes(shape.inline_max)}};
    qp->qp = UniqueQp(device->create_qp(make), {device.get()});
    qp->psn = 100 + 7 * next_index_;
    const bool datagram = shape.type == QpType::ud;
    Transition init = datagram ? to_datagram_init(1, kQkey) : to_init(1, access_flags(RemoteAccess::all()));
    device->modify(qp->qp.get(), init.attr, init.mask);
    const Life life = life_of(next_life_++);
    if (datagram) {
        qp->marker_ah = make_verbs_ah();
        Transition rtr = to_state(IBV_QPS_RTR);
        device->modify(qp->qp.get(), rtr.attr, rtr.mask);
        Transition rts = to_rts(qp->psn, {}, QpType::ud);
        device->modify(qp->qp.get(), rts.attr, rts.mask);
    }
    qp->end = std::make_unique<WorkerQp>(WorkerQp::Options{
        .handle = {static_cast<std::uint16_t>(next_index_++ % options_.worker.qps_max), life.generation},
        .epoch = life.epoch,
        .datagram = datagram,
        .state = datagram ? QpState::ready : QpState::init,
        .opcodes = datagram ? opcodes_of(QpType::ud) : shape.opcodes,
        .send = {.depth = send_depth,
                 .sges_max = shape.sges_max,
                 .signal_interval = static_cast<std::uint16_t>(std::max(1u, (send_depth - kMarkersPerQp) / 4)),
                 .coalesce_signals = shape.coalesce_signals},
        .recv_depth = recv_depth,
        .sges_max = shape.sges_max,
        .inline_max = shape.inline_max,
        .ordinary = shape.ordinary,
        .pd = shape.pd,
        .send_cq = shape.send_cq,
        .recv_cq = shape.recv_cq,
        .srq = shape.srq != nullptr ? shape.srq->end.get() : nullptr,
        .marker_ah = qp->marker_ah.get(),
        .shares = shape.shares});
    WorkerQp& end = *qp->end;
    const SendQueueLines lines = options_.provider_lines ? device->send_queue_lines(qp->qp.get()) : SendQueueLines();
    end.set_provider(*qp->qp, shape.provider_lines.known() ? shape.provider_lines : lines);
    if (shape.pool.pool != nullptr && arrival_of(shape.flow) == Arrival::receives) {
        end.recvs().fill_from(*shape.pool.pool->buffers, shape.pool.depth, shape.pool.share);
    }
    if (shape.flow != FlowControl::off) {
        add_flow_control(*qp, shape, send_depth, recv_depth);
    }
    proxy.add_qp(end);
    qps.push_back(std::move(qp));
    return *qps.back();
}

inline void SteppedWorld::connect(Qp& from, Qp& to, const PathAttributes& path) {
    const GidEntry gid = device->gids().front();
    QpInfo peer;
    std::memcpy(peer.gid.data(), gid.gid.raw, 16);
    peer.qp_num = to.qp->qp_num;
    peer.psn = to.psn;
    proxy.while_parked(from.handle(), QpState::init, QpState::ready, Status::success, [&] {
        Transition rtr = to_rtr(peer, path, 1, static_cast<std::uint8_t>(gid.index), IBV_MTU_1024);
        device->modify(from.qp.get(), rtr.attr, rtr.mask);
        Transition rts = to_rts(from.psn, path);
        device->modify(from.qp.get(), rts.attr, rts.mask);
    });
    if (from.block != nullptr) {
        start_flow(from, to);
    }
}

inline void SteppedWorld::start_flow(Qp& from, const Qp& to) {
    proxy.start_flow(from.handle(), {.peer_addr = reinterpret_cast<std::uintptr_t>(to.block),
                                     .peer_rkey = to.block_rkey,
                                     .reads = true,
                                     .readable = true});
}

inline std::pair<SteppedWorld::Qp*, SteppedWorld::Qp*> SteppedWorld::pair(const QpShape& shape,
                                                                          const PathAttributes& path) {
    if (ends.empty()) {
        add_session();
    }
    if (cqs_.empty()) {
        add_cq();
    }
    Qp& a = add_qp(shape);
    Qp& b = add_qp(shape);
    connect(a, b, path);
    connect(b, a, path);
    return {&a, &b};
}

inline void SteppedWorld::to_error(Qp& qp, QpState before) {
    proxy.while_parked(qp.handle(), before, QpState::error, Status::wr_flush_err, [&] {
        Transition error = to_state(IBV_QPS_ERR);
        device->modify(qp.qp.get(), error.attr, error.mask);
    });
}

inline bool SteppedWorld::close(Qp& qp, std::uint64_t patience) {
    to_error(qp);
    const bool drained = proxy.retire(qp.handle(), now + patience, std::chrono::milliseconds(1000));
    proxy.park(qp.handle());
    EXPECT_EQ(device->destroy(qp.qp.get()), 0);
    (void)qp.qp.release();
    proxy.forget(qp.handle());
    std::erase_if(qps, [&](const auto& other) { return other.get() == &qp; });
    return drained;
}

inline bool SteppedWorld::reset(Qp& qp, std::uint64_t patience, std::uint32_t life) {
    to_error(qp);
    const bool drained = proxy.retire(qp.handle(), now + patience, std::chrono::milliseconds(1000));
    proxy.park(qp.handle());
    Transition reset = to_state(IBV_QPS_RESET);
    device->modify(qp.qp.get(), reset.attr, reset.mask);
    Transition init = to_init(1, access_flags(RemoteAccess::all()));
    device->modify(qp.qp.get(), init.attr, init.mask);
    proxy.renew(qp.handle(), life);
    return drained;
}

inline void SteppedWorld::add_flow_control(Qp& qp, const QpShape& shape, std::uint32_t send_depth,
                                           std::uint32_t recv_depth) {
    blocks_.push_back(std::make_unique<ControlBlock>());
    qp.block = blocks_.back().get();
    const ibv_mr& mr =
        register_memory(qp.block, sizeof(ControlBlock), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    qp.block_rkey = mr.rkey;
    const FlowKind& kind = flow_kind(shape.flow);
    const WorkerPool* const pool = shape.srq != nullptr         ? shape.srq->end->recvs().pool()
                                   : shape.pool.pool != nullptr ? &shape.pool.pool->end()
                                                                : nullptr;
    FlowParts parts{.block = qp.block,
                    .block_lkey = mr.lkey,
                    .counts_from = shape.counts_from,
                    .waiting = WaitingRequests(
                        send_depth, std::max(slots_for_sges(shape.sges_max), slots_for_inline(shape.inline_max))),
                    .receives = recv_depth,
                    .message_max = pool != nullptr ? pool->message_max() : 0xffffffffu,
                    .grants = shape.srq != nullptr ? shape.srq->grants.get() : nullptr,
                    .rendezvous = shape.rendezvous.pool != nullptr ? shape.rendezvous.pool->buffers.get() : nullptr,
                    .rendezvous_buffers = 2,
                    .ring = shape.pool.pool != nullptr ? shape.pool.pool->ring.get() : nullptr};
    if (kind.entry_bytes != 0) {
        parts.entry_count = std::bit_ceil(send_depth);
        flow_entries_.emplace_back(parts.entry_count * kind.entry_bytes);
        parts.entries = flow_entries_.back().data();
        parts.entries_lkey = register_memory(parts.entries, flow_entries_.back().size(), 0).lkey;
    }
    parts.terms = shape.terms.value_or(kind.terms(parts));
    qp.end->set_flow(kind.make(*qp.end, parts));
}

}  // namespace pollcore::testing
