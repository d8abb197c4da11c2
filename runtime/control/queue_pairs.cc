// Queue pairs: making them, connecting by exchanged information, and the sequence that ends them (H1).
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "connect/gid.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

// Unsignaled work is signaled at least this often, so that places come back before a queue is full.
constexpr std::uint32_t kSignalIntervalMax = 64;

// A drain that starts after the deadline still gets the time that a healthy device needs.
constexpr std::chrono::milliseconds kDrainAtLeast{20};

// Receives of a QP in ERR that come no more are given up after so long. A device flushes in microseconds; what takes
// longer is another thread on the worker's core.
constexpr std::chrono::milliseconds kQuiet{100};

// What the device has not is refused by the session already.
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

std::uint32_t random_psn() {
    static std::random_device device;
    return device() & 0xffffff;
}

}  // namespace

QueuePair RuntimeState::create_queue_pair(const QueuePairOptions& options) {
    QueuePair qp;
    qp.handle_ = executor_->run([&] { return create_qp_here(options); });
    qp.runtime_ = shared_from_this();
    return qp;
}

std::uint16_t RuntimeState::free_qp_index() const {
    // Round robin: an index rests as long as it can before it is used again.
    for (std::size_t i = 0; i < qps_.size(); ++i) {
        const std::size_t index = (next_qp_index_ + i) % qps_.size();
        if (qps_[index] == nullptr) {
            return static_cast<std::uint16_t>(index);
        }
    }
    throw Error(ENOSPC, fmt::format("all {} queue pairs of runtime.qps_max are in use", qps_.size()));
}

std::uint16_t RuntimeState::next_generation(std::uint16_t index) const {
    const auto next = static_cast<std::uint16_t>(qp_generations_[index] + 1);
    return next == 0 ? std::uint16_t{1} : next;
}

QpHandle RuntimeState::create_qp_here(const QueuePairOptions& options) {
    DeviceSlot& device = device_slot(options.device);
    if (options.shares.empty()) {
        throw Error(EINVAL, "a queue pair needs at least one session that posts to it");
    }
    if (options.sges_max > kSgesMax || options.inline_max > kInlineMax || options.recv_depth > kQueueDepthMax) {
        throw Error(EINVAL, fmt::format("sges_max = {}, inline_max = {}, recv_depth = {}: accepted is up to {}, {} and {}",
                                        options.sges_max, options.inline_max, options.recv_depth, kSgesMax, kInlineMax,
                                        kQueueDepthMax));
    }
    auto slot = std::make_unique<QpSlot>();
    slot->end = std::make_unique<WorkerQp>();
    WorkerQp& end = *slot->end;
    std::uint32_t send_depth = 0;
    for (std::size_t i = 0; i < options.shares.size(); ++i) {
        const QpShare& share = options.shares[i];
        if (share.session == nullptr || !share.session->valid()) {
            throw Error(EINVAL, "a queue pair's share names no open session");
        }
        const SessionSlot& session = session_slot(share.session->id());
        if (i == 0) {
            slot->worker = session.worker;
        } else if (session.worker != slot->worker) {
            throw Error(EINVAL, fmt::format("the sessions of a queue pair belong to one worker; these are of \"{}\" and \"{}\"",
                                            workers_[slot->worker]->config.name, workers_[session.worker]->config.name));
        }
        const auto same = [&](const ShareOptions& other) { return other.session == session.index; };
        if (std::any_of(end.shares.begin(), end.shares.end(), same)) {
            throw Error(EINVAL, "a session stands twice in the shares of a queue pair");
        }
        if (share.send_depth > kQueueDepthMax) {
            throw Error(EINVAL, fmt::format("send_depth = {}: accepted is up to {}", share.send_depth, kQueueDepthMax));
        }
        send_depth += share.send_depth;
        const bool receives = i == 0 && options.srq == nullptr;
        end.shares.push_back({session.index, share.send_depth, receives ? options.recv_depth : 0});
    }
    if (send_depth > kQueueDepthMax) {
        throw Error(EINVAL, fmt::format("the shares add up to a send queue of {}; accepted is up to {}", send_depth,
                                        kQueueDepthMax));
    }
    WorkerSlot& worker = *workers_[slot->worker];
    const std::uint16_t index = free_qp_index();
    slot->handle = {index, next_generation(index)};
    slot->device = device.index;
    slot->pd = pd_of(device, options.pd);
    slot->psn = random_psn();
    slot->type = options.type;
    slot->qkey = options.qkey;
    slot->remote_access = options.remote_access;
    slot->srq = srq_for(options, *slot);
    slot->send_entries = send_depth + kMarkersPerQp;
    slot->recv_entries = end.shares.front().recv_depth;

    const std::uint32_t both = slot->send_entries + slot->recv_entries;
    if (options.separate_cqs) {
        slot->send_cq = choose_cq(worker, device, slot->send_entries, nullptr, std::nullopt);
        slot->recv_cq = choose_cq(worker, device, slot->recv_entries, slot->srq, slot->send_cq);
    } else {
        slot->send_cq = slot->recv_cq = choose_cq(worker, device, both, slot->srq, std::nullopt);
    }

    QpOptions make{.pd = pds_.at(slot->pd).pd.get(),
                   .domain = device.domains.at(slot->worker).get(),
                   .send_cq = worker.cqs[slot->send_cq]->cq.get(),
                   .recv_cq = worker.cqs[slot->recv_cq]->cq.get(),
                   .srq = slot->srq != nullptr ? slot->srq->srq.get() : nullptr,
                   .type = static_cast<ibv_qp_type>(options.type),
                   .cap = {.max_send_wr = slot->send_entries,
                           .max_recv_wr = std::max(slot->recv_entries, 1u),
                           .max_send_sge = std::max(options.sges_max, 1u),
                           .max_recv_sge = std::max(options.sges_max, 1u),
                           .max_inline_data = options.inline_max}};
    // Creating touches the CQs' memory no more than their own lock covers; what parks is modify and destroy.
    end.handle = slot->handle;
    end.device = device.index;
    end.opcodes = opcodes_of(options.type) & opcodes_of(device.device->limits());
    end.datagram = options.type == QpType::ud;
    end.pd = slot->pd;
    end.signal_interval = std::clamp(send_depth / 4, 1u, kSignalIntervalMax);
    end.sends = InFlightTable(slot->send_entries, std::max(options.sges_max, 1u));
    end.recvs = InFlightTable(std::max(slot->recv_entries, 1u), std::max(options.sges_max, 1u));
    end.send_cq = slot->send_cq;
    end.recv_cq = slot->recv_cq;
    end.sges_max = static_cast<std::uint8_t>(std::max(options.sges_max, 1u));
    end.inline_max = static_cast<std::uint16_t>(options.inline_max);
    if (end.datagram) {
        QpInfo self;
        const GidEntry gid = choose_gid(*device.device, device.config.gid);
        std::copy(std::begin(gid.gid.raw), std::end(gid.gid.raw), self.gid.begin());
        ibv_ah_attr address = address_here(device, self, {});
        slot->marker_ah = UniqueAh(device.device->create_ah(make.pd, address), {device.device.get()});
        end.marker_ah = slot->marker_ah.get();
    }
    slot->qp = UniqueQp(device.device->create_qp(make), {device.device.get()});
    slot->qp_num = slot->qp->qp_num;
    end.qp = slot->qp.get();
    end.qp_num = slot->qp->qp_num;
    end.srq = slot->srq != nullptr ? slot->srq->end.get() : nullptr;
    worker.proxy->add_qp(end);

    reserve_entries(*slot);
    qp_generations_[index] = slot->handle.generation;
    next_qp_index_ = static_cast<std::uint16_t>(index + 1);
    qps_[index] = std::move(slot);

    // From here on the worker knows it, so that its CQs are parked for what follows, and for the way back.
    QpSlot& qp = *qps_[index];
    const QpHandle handle = qp.handle;
    try {
        Transition init = options.type == QpType::ud
                              ? to_datagram_init(device.device->port(), options.qkey)
                              : to_init(device.device->port(), access_flags(options.remote_access));
        modify_here(qp, init.attr, init.mask, QpState::init);
        if (options.type == QpType::ud) {
            activate_here(qp);
        }
    } catch (...) {
        try {
            destroy_qp_here(qp);
        } catch (const std::exception& error) {
            log_error("after a failure: {}", error.what());  // that failure is what the caller is told
        }
        throw;
    }
    return handle;
}

// UD: from INIT to RTS. There is no peer to wait for, and a datagram that finds no receive is lost anyway.
void RuntimeState::activate_here(QpSlot& qp) {
    qp.moved = true;
    Transition rtr = to_state(IBV_QPS_RTR);
    modify_here(qp, rtr.attr, rtr.mask, QpState::init);
    Transition rts = to_rts(qp.psn, {}, QpType::ud);
    modify_here(qp, rts.attr, rts.mask, QpState::ready);
}

// The SRQ that a queue pair of these sessions takes its receives from, if from one.
SrqSlot* RuntimeState::srq_for(const QueuePairOptions& options, const QpSlot& qp) {
    if (options.srq == nullptr) {
        return nullptr;
    }
    SrqSlot& srq = srq_slot(options.srq->handle());
    if (srq.device != qp.device) {
        throw Error(EINVAL, fmt::format("a queue pair of device \"{}\" cannot take receives from a shared receive queue of "
                                        "device \"{}\"",
                                        devices_[qp.device]->config.name, devices_[srq.device]->config.name));
    }
    // Its receives complete on any of its queue pairs, so these deliver them to one session (H4).
    if (srq.session != options.shares.front().session->id()) {
        throw Error(EINVAL, fmt::format("a shared receive queue delivers the receives of all its queue pairs to the session "
                                        "that it was made for, {}; it must be the first of the queue pair's shares, which "
                                        "is {}",
                                        srq.session, options.shares.front().session->id()));
    }
    return &srq;
}

// A CQ with room for everything that may be outstanding; when all are full the worker opens another. All receives of
// an SRQ may complete on one CQ, and never more than those, however many of its queue pairs are there (H4).
std::uint32_t RuntimeState::choose_cq(WorkerSlot& worker, DeviceSlot& device, std::uint32_t entries,
                                      const SrqSlot* srq, std::optional<std::uint32_t> other_than) {
    const std::uint32_t with_srq = entries + (srq != nullptr ? srq->depth : 0);
    if (with_srq > worker.config.cq_depth) {
        throw Error(EINVAL, fmt::format("the queue pair may have {} work requests outstanding on one CQ, and worker "
                                        "\"{}\" opens CQs of cq_depth = {}; raise cq_depth or ask for less",
                                        with_srq, worker.config.name, worker.config.cq_depth));
    }
    std::optional<std::uint32_t> fits;
    for (std::uint32_t i = 0; i < worker.cqs.size(); ++i) {
        const CqSlot* cq = worker.cqs[i].get();
        if (cq == nullptr || cq->failed || cq->device != device.index || i == other_than) {
            continue;
        }
        const std::uint32_t room = cq->capacity - cq->reserved;
        if (srq != nullptr && cq->srqs.contains(srq->handle.index) && room >= entries) {
            return i;
        }
        if (!fits && room >= with_srq) {
            fits = i;
        }
    }
    if (fits) {
        return *fits;
    }
    auto slot = std::make_unique<CqSlot>();
    slot->device = device.index;
    slot->capacity = worker.config.cq_depth;
    const DeviceLimits& limits = device.device->limits();
    const bool by_extended = worker.config.poll != PollVerbs::plain && limits.extended_cqs;
    slot->cq = UniqueCq(device.device->create_cq({.cqe = worker.config.cq_depth,
                                                  .domain = device.domains.at(worker_index(worker)).get(),
                                                  .extended = by_extended}),
                        {device.device.get()});
    slot->worker_cq.id = next_cq_++;
    slot->worker_cq.cq = slot->cq.get();
    slot->worker_cq.extended = by_extended ? extended(slot->cq.get()) : nullptr;
    slot->worker_cq.next_poll = limits.next_poll;
    slot->worker_cq.depth = static_cast<std::uint32_t>(slot->cq->cqe);
    const auto empty = std::find(worker.cqs.begin(), worker.cqs.end(), nullptr);
    const auto index = static_cast<std::uint32_t>(empty - worker.cqs.begin());
    if (empty == worker.cqs.end()) {
        worker.cqs.emplace_back();
    }
    worker.proxy->add_cq(index, slot->worker_cq);
    worker.cqs[index] = std::move(slot);
    return index;
}

void RuntimeState::reserve_entries(const QpSlot& qp) {
    WorkerSlot& worker = *workers_[qp.worker];
    CqSlot& send_cq = *worker.cqs[qp.send_cq];
    CqSlot& recv_cq = *worker.cqs[qp.recv_cq];
    ++send_cq.queues;
    ++recv_cq.queues;
    send_cq.reserved += qp.send_entries;
    recv_cq.reserved += qp.recv_entries;
    if (qp.srq != nullptr) {
        ++qp.srq->qps;
        if (recv_cq.srqs[qp.srq->handle.index]++ == 0) {
            recv_cq.reserved += qp.srq->depth;
        }
    }
}

// A CQ of a lost device goes with its last queue.
void RuntimeState::release_entries(const QpSlot& qp) {
    WorkerSlot& worker = *workers_[qp.worker];
    CqSlot& send_cq = *worker.cqs[qp.send_cq];
    CqSlot& recv_cq = *worker.cqs[qp.recv_cq];
    --send_cq.queues;
    --recv_cq.queues;
    send_cq.reserved -= qp.send_entries;
    recv_cq.reserved -= qp.recv_entries;
    if (qp.srq != nullptr) {
        --qp.srq->qps;
        if (const auto here = recv_cq.srqs.find(qp.srq->handle.index); --here->second == 0) {
            recv_cq.srqs.erase(here);
            recv_cq.reserved -= qp.srq->depth;
        }
    }
    if (!devices_[qp.device]->lost) {
        return;
    }
    for (const std::uint32_t index : {qp.send_cq, qp.recv_cq}) {
        if (worker.cqs[index] != nullptr && worker.cqs[index]->queues == 0) {
            worker.proxy->remove_cq(index);
            worker.cqs[index].reset();
        }
    }
}

std::uint32_t RuntimeState::worker_index(const WorkerSlot& worker) const {
    return static_cast<std::uint32_t>(
        std::find_if(workers_.begin(), workers_.end(), [&](const auto& w) { return w.get() == &worker; }) -
        workers_.begin());
}

// ---- State changes ----

void RuntimeState::modify_here(QpSlot& qp, ibv_qp_attr& attr, int mask, QpState after, Status cause) {
    workers_[qp.worker]->proxy->while_parked(qp.handle, qp.state, after, cause, [&] {
        devices_[qp.device]->device->modify(qp.qp.get(), attr, mask);
    });
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
        return info;
    });
}

void RuntimeState::require_connectable(const QpSlot& qp) const {
    if (qp.type == QpType::ud) {
        throw Error(EINVAL, fmt::format("queue pair {} is UD, which has no connection: its sends name an address handle, a "
                                        "queue pair number and a Q_Key",
                                        qp.qp_num));
    }
}

void RuntimeState::connect(QpHandle handle, const QpInfo& peer, const PathAttributes& path) {
    executor_->run([&] {
        QpSlot& qp = live_qp_slot(handle);
        require_connectable(qp);
        if (qp.state != QpState::init || qp.moved) {
            throw Error(EISCONN, fmt::format("queue pair {} is connected, or was: reset it first", qp.qp_num));
        }
        if (peer.type != qp.type) {
            throw Error(EPROTOTYPE, fmt::format("queue pair {} and its peer, queue pair {}, are not of one type",
                                                qp.qp_num, peer.qp_num));
        }
        DeviceSlot& device = *devices_[qp.device];
        const ibv_port_attr port = device.device->query_port();
        const GidEntry gid = choose_gid(*device.device, device.config.gid);
        PathAttributes within = path;
        const auto most = static_cast<std::uint8_t>(std::min(device.device->limits().rd_atomic_max, 255u));
        within.max_rd_atomic = std::min(path.max_rd_atomic, most);
        within.max_dest_rd_atomic = std::min(path.max_dest_rd_atomic, most);
        Transition rtr = to_rtr(peer, within, device.device->port(), static_cast<std::uint8_t>(gid.index), port.active_mtu,
                                qp.type);
        modify_here(qp, rtr.attr, rtr.mask, QpState::init);
        qp.moved = true;  // what failed before leaves it in INIT, where it may be connected again
        try {
            Transition rts = to_rts(qp.psn, within, qp.type);
            modify_here(qp, rts.attr, rts.mask, QpState::ready);
        } catch (...) {
            fail_connection_here(qp);
            throw;
        }
    });
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

// ---- The end ----

bool RuntimeState::close_queue_pair(QpHandle handle) {
    return executor_->run([&] {
        if (!running_.load() || find_qp(handle) == nullptr) {
            return true;  // closed with its session or the runtime
        }
        return close_qp_here(handle, std::chrono::steady_clock::now() + config.drain_timeout);
    });
}

bool RuntimeState::close_qp_here(QpHandle handle, std::chrono::steady_clock::time_point deadline) {
    // Of one that was lost with its device nothing is in flight.
    const bool drained = find_qp(handle)->qp == nullptr || retire_qp_here(handle, deadline);
    QpSlot* qp = find_qp(handle);
    if (qp == nullptr) {
        return true;  // an event that came meanwhile has ended it
    }
    const std::uint32_t qp_num = qp->qp_num;
    const Counter& cut_short = workers_[qp->worker]->worker->counters().cut_short;
    const std::uint64_t before = cut_short.value();
    destroy_qp_here(*qp);
    if (!drained) {
        log_warning("queue pair {}: the runtime completed {} requests", qp_num, cut_short.value() - before);
    }
    return drained;
}

// The sequence of H1 up to the point where the QP may be destroyed or RESET. True when nothing is in flight any more:
// the device flushed everything, or an event that came meanwhile has ended the QP or lost its device.
bool RuntimeState::retire_qp_here(QpHandle handle, std::chrono::steady_clock::time_point deadline) {
    QpSlot& qp = *find_qp(handle);
    forget_connection_here(qp);
    std::uint32_t quiet = 0;
    try {
        Transition error = to_state(IBV_QPS_ERR);
        modify_here(qp, error.attr, error.mask, QpState::error, Status::qp_closed);
        quiet = static_cast<std::uint32_t>(cycles_from(kQuiet));
    } catch (const Error& error) {
        if (error.code() == std::errc::io_error && lost_meanwhile(*devices_[qp.device])) {
            return true;
        }
        log_warning("queue pair {}: {}; it is taken out of service as it is", qp.qp_num, error.what());
    }
    if (qp.srq != nullptr && !await_last_wqe(handle)) {
        return true;
    }
    const auto left = std::max(std::chrono::duration_cast<std::chrono::milliseconds>(
                                   deadline - std::chrono::steady_clock::now()),
                               kDrainAtLeast);
    const bool drained =
        workers_[qp.worker]->proxy->retire(handle, cycles_now() + cycles_from(left), left, quiet);
    if (!drained) {
        counters.cut_short.add();
        log_warning("queue pair {} of device \"{}\" did not flush its work within {} ms; the runtime completes it",
                    qp.qp_num, devices_[qp.device]->config.name, left.count());
    }
    return drained;
}

// A queue pair of an SRQ may have taken a receive whose message is half there; that one completes before this event,
// and would be lost if the queue pair were destroyed before (H1). Not every provider raises it (Linux 6.1's Soft-RoCE
// does not), so it is waited for no longer than a healthy device needs. Events are taken here, since the event loop waits
// for the control thread, which is this one; false when one of them has ended the queue pair or lost its device.
bool RuntimeState::await_last_wqe(QpHandle handle) {
    const auto deadline = std::chrono::steady_clock::now() + kDrainAtLeast;
    DeviceSlot& device = *devices_[find_qp(handle)->device];
    for (;;) {
        take_async_events(device);
        const QpSlot* qp = find_qp(handle);
        if (qp == nullptr || qp->qp == nullptr) {
            return false;
        }
        if (qp->last_wqe_reached || std::chrono::steady_clock::now() > deadline) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

void RuntimeState::destroy_qp_here(QpSlot& qp, Status leftovers) {
    WorkerProxy& worker = *workers_[qp.worker]->proxy;
    renew_windows_here(qp);  // those that are bound to it
    worker.park(qp.handle);
    destroy_verbs_qp(qp);
    worker.forget(qp.handle, leftovers);
    renew_windows_here(qp);  // those whose binds it did not complete
    release_entries(qp);
    qps_[qp.handle.index].reset();
}

// The QP is parked, and stays so unless this throws.
void RuntimeState::destroy_verbs_qp(QpSlot& qp) {
    if (qp.qp == nullptr) {
        return;
    }
    WorkerProxy& worker = *workers_[qp.worker]->proxy;
    DeviceSlot& device = *devices_[qp.device];
    const int error = device.device->destroy(qp.qp.get());
    // A device that the kernel has let go of answers EIO, and its QPs have ended with it.
    if (error != 0 && !(error == EIO && device.lost)) {
        // Not destroyed, so its buffers may still be written: nothing may be completed in its name (H2).
        worker.unpark(qp.handle, QpState::error);
        if (error == EIO && lost_meanwhile(device) && qp.qp == nullptr) {
            return worker.park(qp.handle);
        }
        throw Error(error, fmt::format("device \"{}\" does not destroy queue pair {}", device.config.name, qp.qp_num));
    }
    (void)qp.qp.release();
}

// ---- Beginning again ----

std::pair<QpHandle, bool> RuntimeState::reset(QpHandle handle) {
    return executor_->run([&] {
        DeviceSlot& device = *devices_[live_qp_slot(handle).device];
        const bool drained = retire_qp_here(handle, std::chrono::steady_clock::now() + config.drain_timeout);
        take_async_events(device);          // what is said of this life shall not be taken for said of the next
        QpSlot& qp = live_qp_slot(handle);  // it may have been lost on the way
        WorkerProxy& worker = *workers_[qp.worker]->proxy;
        const QpHandle renewed{handle.index, next_generation(handle.index)};
        const std::uint32_t psn = random_psn();  // packets of the connection before shall not fit the next
        renew_windows_here(qp);  // as if it were destroyed
        worker.park(handle);
        try {
            restart_verbs_qp(qp, psn);
        } catch (...) {
            worker.unpark(handle, QpState::error);
            throw;
        }
        const bool datagram = qp.type == QpType::ud;
        const QpState state = datagram ? QpState::ready : QpState::init;
        worker.renew(handle, renewed.generation, state);
        renew_windows_here(qp);  // those whose binds it did not complete
        qp_generations_[handle.index] = renewed.generation;
        qp.handle = renewed;
        qp.state = state;
        qp.psn = psn;
        qp.moved = datagram;
        qp.disconnected = false;
        qp.last_wqe_reached = false;
        return std::pair(renewed, drained);
    });
}

// Through RESET to where a new QP of its type begins. The QP is parked.
void RuntimeState::restart_verbs_qp(QpSlot& qp, std::uint32_t psn) {
    Device& device = *devices_[qp.device]->device;
    const auto move = [&](Transition to) { device.modify(qp.qp.get(), to.attr, to.mask); };
    move(to_state(IBV_QPS_RESET));
    if (qp.type != QpType::ud) {
        move(to_init(device.port(), access_flags(qp.remote_access)));
        return;
    }
    move(to_datagram_init(device.port(), qp.qkey));
    move(to_state(IBV_QPS_RTR));
    move(to_rts(psn, {}, QpType::ud));
}

}  // namespace pollcore
