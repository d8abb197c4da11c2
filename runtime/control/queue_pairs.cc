// Makes queue pairs, and connects them by exchanged information.
#include <algorithm>

#include <fmt/format.h>

#include "base/life.hpp"
#include "base/log.hpp"
#include "base/probe.hpp"
#include "base/undo.hpp"
#include "connect/gid.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

// At least one in this many work requests is signaled, so that places become free before a queue is full.
constexpr std::uint32_t kSignalIntervalMax = 64;

// Returns the operations that the device has. The session refuses all others (D38).
OpcodeMask opcodes_of(const DeviceLimits& limits) {
    OpcodeMask without = 0;
    if (!limits.memory_windows_1 && !limits.memory_windows_2) {
        without |= opcode_bit(Opcode::bind_mw);
    }
    if (!limits.invalidation) {
        without |= opcode_bit(Opcode::local_inv) | opcode_bit(Opcode::send_with_inv);
    }
    if (!limits.atomics) {
        without |= opcode_bit(Opcode::atomic_cmp_and_swp) | opcode_bit(Opcode::atomic_fetch_and_add);
    }
    return static_cast<OpcodeMask>(~without);
}

}  // namespace

QpHandle RuntimeState::create_qp(const QpSpec& spec) {
    return executor_->run([&] {
        try {
            return create_qp_here(spec);
        } catch (...) {
            for (const auto& worker : workers_) {  // choose_cq() may have made a CQ, which nobody uses now
                std::for_each(devices_.begin(), devices_.end(),
                              [&](const auto& device) { close_idle_cqs(*worker, *device); });
            }
            throw;
        }
    });
}

std::uint16_t RuntimeState::free_qp_index() const {
    // Round robin, so that an index is not used again soon.
    for (std::size_t i = 0; i < qps_.size(); ++i) {
        const std::size_t index = (next_qp_index_ + i) % qps_.size();
        if (qps_[index] == nullptr) {
            return static_cast<std::uint16_t>(index);
        }
    }
    throw Error(ENOSPC, fmt::format("all {} queue pairs of runtime.qps_max are in use", qps_.size()));
}

QpHandle RuntimeState::create_qp_here(const QpSpec& spec) {
    DeviceSlot& device = device_slot(spec.device.string());
    if (spec.sges_max > kSgesMax || spec.inline_max > kInlineMax || spec.recv_depth > kQueueDepthMax) {
        throw Error(EINVAL,
                    fmt::format("sges_max = {}, inline_max = {}, recv_depth = {}: accepted is up to {}, {} and {}",
                                spec.sges_max, spec.inline_max, spec.recv_depth, kSgesMax, kInlineMax, kQueueDepthMax));
    }
    if (!is_known(spec.flow)) {
        throw Error(EINVAL, fmt::format("there is no flow control {}", static_cast<unsigned>(spec.flow)));
    }
    if (spec.by_hand && (spec.flow != FlowControl::off || spec.qkey != 0 || spec.remote_access != RemoteAccess{})) {
        throw Error(EINVAL,
                    "a queue pair that is driven by hand has no flow control, and takes its Q_Key and its "
                    "remote access by modify()");
    }
    auto slot = std::make_unique<QpSlot>();
    WorkerQp::Options plan;
    std::uint32_t send_depth = 0;
    bool device_time = false;
    for (std::size_t i = 0; i < spec.share_count; ++i) {
        const ShareSpec& share = spec.shares[i];
        const SessionSlot& session = session_slot(share.session);
        if (i == 0) {
            slot->worker = session.worker;
        } else if (session.worker != slot->worker) {
            throw Error(EINVAL,
                        fmt::format("the sessions of a queue pair belong to one worker; these are of \"{}\" and \"{}\"",
                                    workers_[slot->worker]->config.name, workers_[session.worker]->config.name));
        }
        const auto same = [&](const ShareOptions& other) { return other.session == session.index; };
        if (std::any_of(plan.shares.begin(), plan.shares.end(), same)) {
            throw Error(EINVAL, "a session stands twice in the shares of a queue pair");
        }
        if (share.send_depth > kQueueDepthMax) {
            throw Error(EINVAL, fmt::format("send_depth = {}: accepted is up to {}", share.send_depth, kQueueDepthMax));
        }
        send_depth += share.send_depth;
        device_time |= session.end->options().device_time;
        const bool receives =
            i == 0 && !spec.srq.valid() && !spec.pool.valid() && arrival_of(spec.flow) == Arrival::receives;
        plan.shares.push_back({session.index, share.send_depth, receives ? spec.recv_depth : 0});
    }
    if (send_depth > kQueueDepthMax) {
        throw Error(EINVAL, fmt::format("the shares add up to a send queue of {}; accepted is up to {}", send_depth,
                                        kQueueDepthMax));
    }
    if (device_time && device.device->limits().completion_timestamp_mask == 0) {
        throw Error(EOPNOTSUPP,
                    fmt::format("a session of the queue pair was opened with device_time, and the completions "
                                "of {} have no time stamps",
                                device.device->describe()));
    }
    WorkerSlot& worker = *workers_[slot->worker];
    const std::uint16_t index = free_qp_index();
    const Life life = life_of(qp_lives_[index]);
    slot->handle = {index, life.generation};
    slot->name = spec.name;
    slot->device = device.index;
    slot->pd = pd_of(device, spec.pd);
    slot->client = pds_.at(slot->pd).client;
    slot->psn = spec.by_hand ? 0 : random_psn();
    slot->type = spec.type;
    slot->qkey = spec.qkey;
    slot->by_hand = spec.by_hand;
    slot->state = spec.by_hand ? QpState::reset : QpState::init;
    const FlowKind& flow = flow_kind(spec.flow);
    slot->remote_access = {.read = spec.remote_access.read || flow.access.read,
                           .write = spec.remote_access.write || flow.access.write,
                           .atomic = spec.remote_access.atomic || flow.access.atomic};
    slot->flow = spec.flow;
    slot->srq = srq_for(spec, *slot);
    slot->pool = pool_for(spec, *slot);
    slot->rendezvous = rendezvous_for(spec, *slot);
    slot->send_entries = send_depth + kMarkersPerQp + flow.send_entries;
    slot->recv_entries = slot->pool.pool != nullptr && slot->pool.pool->buffers != nullptr
                             ? spec.recv_depth
                             : plan.shares.front().recv_depth;

    const std::uint32_t both = slot->send_entries + slot->recv_entries;
    if (spec.separate_cqs) {
        slot->send_cq = choose_cq(worker, device, slot->send_entries, nullptr, device_time, std::nullopt);
        slot->recv_cq = choose_cq(worker, device, slot->recv_entries, slot->srq, device_time, slot->send_cq);
    } else {
        slot->send_cq = slot->recv_cq = choose_cq(worker, device, both, slot->srq, device_time, std::nullopt);
    }

    // Flow control (flow/) posts its grants and announcements inline, and also each record of a write ring whose
    // payload is inline.
    const std::uint32_t own_inline = spec.flow != FlowControl::off ? sizeof(Announcement::Words) : 0;
    QpOptions make{.pd = pds_.at(slot->pd).pd.get(),
                   .domain = device.domains.at(slot->worker).get(),
                   .send_cq = worker.cqs[slot->send_cq]->cq.get(),
                   .recv_cq = worker.cqs[slot->recv_cq]->cq.get(),
                   .srq = slot->srq != nullptr ? slot->srq->srq.get() : nullptr,
                   .type = static_cast<ibv_qp_type>(spec.type),
                   .cap = {.max_send_wr = slot->send_entries,
                           .max_recv_wr = std::max(slot->recv_entries, 1u),
                           .max_send_sge = std::max(spec.sges_max, 1u) + flow.sges,
                           .max_recv_sge = std::max(spec.sges_max, 1u),
                           .max_inline_data = std::max(flow.inline_bytes(spec.inline_max), own_inline)},
                   .leave_memory = slot->client != 0 || (spec.by_hand && device.device->limits().leaves_memory)};
    worker.worker->failed_qps().forget(index);
    plan.handle = slot->handle;
    plan.epoch = life.epoch;
    plan.datagram = spec.type == QpType::ud;
    plan.opcodes = static_cast<OpcodeMask>(opcodes_of(spec.type) & opcodes_of(device.device->limits()) & ~flow.without);
    plan.sges_max = std::max(spec.sges_max, 1u);
    plan.inline_max = spec.inline_max;
    // The verbs allow to deregister under posted requests. That is safe only if the provider's code never touches their
    // memory.
    plan.keeps_regions = !(spec.by_hand && make.leave_memory);
    plan.state = slot->state;
    plan.send = {.depth = slot->send_entries,
                 .sges_max = plan.sges_max,
                 .signal_interval = static_cast<std::uint16_t>(std::clamp(send_depth / 4, 1u, kSignalIntervalMax)),
                 .coalesce_signals = spec.coalesce_signals};
    plan.recv_depth = slot->recv_entries;
    plan.device = device.index;
    plan.pd = slot->pd;
    plan.send_cq = slot->send_cq;
    plan.recv_cq = slot->recv_cq;
    plan.srq = slot->srq != nullptr ? slot->srq->end.get() : nullptr;
    if (plan.datagram) {
        QpInfo self;
        const GidEntry gid = choose_gid(*device.device, device.config.gid);
        std::copy(std::begin(gid.gid.raw), std::end(gid.gid.raw), self.gid.begin());
        ibv_ah_attr address = address_here(device, self, {});
        slot->marker_ah = UniqueAh(device.device->create_ah(make.pd, address), {device.device.get()});
        plan.marker_ah = slot->marker_ah.get();
    }
    slot->end = std::make_unique<WorkerQp>(plan);
    WorkerQp& end = *slot->end;
    if (spec.flow != FlowControl::off) {
        add_flow_control(spec, *slot, send_depth);
    }
    if (slot->pool.pool != nullptr && slot->pool.pool->buffers != nullptr) {
        end.recvs().fill_from(*slot->pool.pool->buffers, spec.recv_depth, slot->pool.buffers);
    }
    reserve_entries(*slot);
    take_share(slot->pool);
    take_share(slot->rendezvous);
    Undo give_back([&]() noexcept {
        release_entries(*slot);
        return_share(slot->pool);
        return_share(slot->rendezvous);
    });
    // Everything that may fail comes before the QP is made, because destroying a QP changes CQs that the worker polls
    // (H1). Making a QP changes only CQ memory that the CQs' own locks protect. So only modify and destroy need parking
    // (D43).
    worker.proxy->make_room(end);
    slot->qp = UniqueQp(device.device->create_qp(make), {device.device.get()});
    slot->qp_num = slot->qp->qp_num;
    end.set_provider(*slot->qp, device.device->send_queue_lines(slot->qp.get()));
    worker.proxy->add_qp(end);
    give_back.keep();
    ++qp_lives_[index];
    next_qp_index_ = static_cast<std::uint16_t>(index + 1);
    qps_[index] = std::move(slot);

    // Now the worker knows the QP. So each of the calls below parks the QP and its CQs, and so does destroy_qp_here()
    // after a failure.
    QpSlot& qp = *qps_[index];
    const QpHandle handle = qp.handle;
    POLLCORE_PROBE(qp_created, qp.qp_num, qp.client);
    if (qp.by_hand) {
        return handle;
    }
    try {
        Transition init = spec.type == QpType::ud ? to_datagram_init(device.device->port(), spec.qkey)
                                                  : to_init(device.device->port(), access_flags(qp.remote_access));
        modify_here(qp, init.attr, init.mask, QpState::init);
        if (spec.type == QpType::ud) {
            activate_here(qp);
        }
    } catch (...) {
        try {
            destroy_qp_here(qp);
        } catch (const std::exception& error) {
            log_error("after a failure: {}", error.what());  // the caller gets the first failure
        }
        throw;
    }
    return handle;
}

// Moves a UD queue pair from INIT to RTS. It has no peer to wait for, and a datagram that finds no receive is lost
// anyway (D41).
void RuntimeState::activate_here(QpSlot& qp) {
    qp.moved = true;
    Transition rtr = to_state(IBV_QPS_RTR);
    modify_here(qp, rtr.attr, rtr.mask, QpState::init);
    Transition rts = to_rts(qp.psn, {}, QpType::ud);
    modify_here(qp, rts.attr, rts.mask, QpState::ready);
}

// Returns the SRQ from which the queue pair takes its receives, or null if there is none.
SrqSlot* RuntimeState::srq_for(const QpSpec& spec, const QpSlot& qp) {
    if (!spec.srq.valid()) {
        return nullptr;
    }
    SrqSlot& srq = srq_slot(spec.srq);
    if (srq.device != qp.device) {
        throw Error(EINVAL,
                    fmt::format("a queue pair of device \"{}\" cannot take receives from a shared receive queue of "
                                "device \"{}\"",
                                devices_[qp.device]->config.name, devices_[srq.device]->config.name));
    }
    // A receive of an SRQ may complete on any of its queue pairs, so all these queue pairs deliver to one session (H4).
    if (srq.session != spec.shares[0].session) {
        throw Error(EINVAL,
                    fmt::format("a shared receive queue delivers the receives of all its queue pairs to the session "
                                "that it was made for, {}; it must be the first of the queue pair's shares, which "
                                "is {}",
                                called_session(srq.session), called_session(spec.shares[0].session)));
    }
    const std::uint32_t credits_max = srq.credit_connections;
    if (arrival_of(spec.flow) == Arrival::write_ring) {
        throw Error(EINVAL, "a queue pair with a write ring takes no receives, hence none from a shared receive queue");
    }
    if (flow_kind(spec.flow).shares_receives != (credits_max != 0)) {
        throw Error(
            EINVAL,
            fmt::format(
                "the shared receive queue has {} connections with credits "
                "(SharedReceiveQueueOptions::credit_connections), and then all its queue pairs have them, or none",
                credits_max));
    }
    if (credits_max != 0 && srq.qps >= credits_max) {
        throw Error(ENOSPC, fmt::format("the shared receive queue has its {} connections with credits", credits_max));
    }
    return &srq;
}

// Returns the queue pair's share of the pool in which its messages arrive, if there is such a pool.
PoolShare RuntimeState::pool_for(const QpSpec& spec, const QpSlot& qp) {
    if (!spec.pool.valid()) {
        return {};
    }
    if (arrival_of(spec.flow) == Arrival::write_ring) {
        return ring_for(spec, qp);
    }
    if (spec.srq.valid()) {
        throw Error(
            EINVAL,
            "the receives of a shared receive queue are posted by its own receive pool, not by that of a queue pair");
    }
    const std::uint32_t session = spec.shares[0].session;
    if (spec.type == QpType::ud && !session_slot(session).layout.wide) {
        throw Error(
            EINVAL,
            "a UD queue pair with a receive pool needs a session with wide completions, which say where a datagram "
            "came from");
    }
    return share_of(spec.pool, spec.pool_share, spec.recv_depth, session, qp.device, qp.pd);
}

// Returns the queue pair's share of the pool for messages that are too long for its receives, if there is such a pool.
PoolShare RuntimeState::rendezvous_for(const QpSpec& spec, const QpSlot& qp) {
    if (!spec.rendezvous_pool.valid()) {
        return {};
    }
    if (flow_kind(spec.flow).rendezvous_reads == 0 ||
        (qp.srq != nullptr ? qp.srq->pool.pool : qp.pool.pool) == nullptr) {
        throw Error(EINVAL, "rendezvous needs FlowControl::credits, and a receive pool for what comes without it");
    }
    const PoolSlot& receives = *(qp.srq != nullptr ? qp.srq->pool.pool : qp.pool.pool);
    const PoolShare share = share_of(spec.rendezvous_pool, spec.rendezvous_share, flow_kind(spec.flow).rendezvous_reads,
                                     spec.shares[0].session, qp.device, qp.pd);
    if (share.pool->end->message_max() <= receives.end->message_max()) {
        throw Error(
            EINVAL,
            fmt::format(
                "the rendezvous pool has buffers of {} bytes, and the receives have {}: it is for longer messages",
                share.pool->end->message_max(), receives.end->message_max()));
    }
    return share;
}

std::uint32_t RuntimeState::worker_index(const WorkerSlot& worker) const {
    return static_cast<std::uint32_t>(
        std::find_if(workers_.begin(), workers_.end(), [&](const auto& w) { return w.get() == &worker; }) -
        workers_.begin());
}

// ---- State changes ----

void RuntimeState::modify_here(QpSlot& qp, ibv_qp_attr& attr, int mask, QpState after, Status cause) {
    workers_[qp.worker]->proxy->while_parked(qp.handle, qp.state, after, cause,
                                             [&] { devices_[qp.device]->device->modify(qp.qp.get(), attr, mask); });
    qp.state = after;
}

QpInfo RuntimeState::info(QpHandle handle) {
    return executor_->run([&] {
        const QpSlot& qp = live_qp_slot(handle);
        DeviceSlot& device = *devices_[qp.device];
        const ibv_port_attr port = device.device->query_port();
        const GidEntry gid = choose_gid(*device.device, device.config.gid);
        QpInfo info;
        std::copy(std::begin(gid.gid.raw), std::end(gid.gid.raw), info.gid.begin());
        info.qp_num = qp.qp_num;
        if (qp.type == QpType::ud) {
            info.qkey = qp.qkey;
        } else {
            info.psn = qp.psn;
        }
        info.lid = port.lid;
        info.mtu = mtu_to_bytes(port.active_mtu);
        info.type = qp.type;
        info.flow = flow_block_of(qp);
        return info;
    });
}

void RuntimeState::require_not_ending(const QpSlot& qp) {
    if (qp.ending) {
        throw Error(EBUSY, fmt::format("queue pair {} is being closed or reset", qp.called()));
    }
}

void RuntimeState::require_connectable(const QpSlot& qp) const {
    if (qp.by_hand) {
        throw Error(EINVAL, fmt::format("queue pair {} is driven by hand: modify() connects it", qp.qp_num));
    }
    if (qp.type == QpType::ud) {
        throw Error(EINVAL,
                    fmt::format("queue pair {} is UD, which has no connection: its sends name an address handle, a "
                                "queue pair number and a Q_Key",
                                qp.called()));
    }
}

void RuntimeState::require_connectable(const QpSlot& qp, const QpInfo& peer) const {
    require_connectable(qp);
    if (qp.state != QpState::init || qp.moved || qp.connection != 0) {
        throw Error(EISCONN, fmt::format("queue pair {} is connected, or was: reset it first", qp.called()));
    }
    if (peer.type != qp.type) {
        throw Error(EPROTOTYPE, fmt::format("queue pair {} and its peer, queue pair {}, are not of one type",
                                            qp.called(), peer.qp_num));
    }
    require_same_flow(qp, peer.flow.kind);
}

void RuntimeState::connect(QpHandle handle, const QpInfo& peer, const PathAttributes& path) {
    const OutsideCall outside(*this);
    executor_->run([&] { return plan_way_here(handle, peer, path); }).find_neighbour();
    executor_->run([&] { connect_here(handle, peer, path); });
}

AhPlan RuntimeState::plan_way_here(QpHandle handle, const QpInfo& peer, const PathAttributes& path) {
    const QpSlot& qp = live_qp_slot(handle);
    require_connectable(qp, peer);
    DeviceSlot& device = *devices_[qp.device];
    return plan_ah_here(device, qp.pd, address_here(device, peer, path));
}

void RuntimeState::connect_here(QpHandle handle, const QpInfo& peer, const PathAttributes& path) {
    QpSlot& qp = live_qp_slot(handle);
    require_connectable(qp, peer);
    DeviceSlot& device = *devices_[qp.device];
    const ibv_port_attr port = device.device->query_port();
    const GidEntry gid = choose_gid(*device.device, device.config.gid);
    PathAttributes within = path;
    const auto most = static_cast<std::uint8_t>(std::min(device.device->limits().rd_atomic_max, 255u));
    within.max_rd_atomic = std::min(path.max_rd_atomic, most);
    within.max_dest_rd_atomic = std::min(path.max_dest_rd_atomic, most);
    Transition rtr =
        to_rtr(peer, within, device.device->port(), static_cast<std::uint8_t>(gid.index), port.active_mtu, qp.type);
    modify_here(qp, rtr.attr, rtr.mask, QpState::init);
    qp.moved = true;  // after a failure before this line, the QP is in INIT and may be connected again (D47)
    try {
        Transition rts = to_rts(qp.psn, within, qp.type);
        modify_here(qp, rts.attr, rts.mask, QpState::ready);
        start_flow_here(qp, peer.flow);
    } catch (...) {
        fail_connection_here(qp);
        throw;
    }
}

std::uint32_t RuntimeState::qp_num(QpHandle handle) {
    return executor_->run([&] { return qp_slot(handle).qp_num; });
}

std::optional<RnrCounts> RuntimeState::rnr_counts(QpHandle handle) {
    return executor_->run([&] {
        const QpSlot& qp = live_qp_slot(handle);
        return devices_[qp.device]->device->rnr_counts(qp.qp.get());
    });
}

std::optional<RnrCounts> RuntimeState::rnr_counts(const std::string& device) {
    return executor_->run([&] { return device_slot(device).device->rnr_counts(); });
}

bool RuntimeState::disconnected(QpHandle handle) {
    return executor_->run([&] { return qp_slot(handle).disconnected; });
}

}  // namespace pollcore
