// The work of an engine in move(): turns of its QPs, arriving packets, completions, timers.
#include "device/soft/engine.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/soft/channel.hpp"

namespace pollcore::soft {

std::uint32_t Engine::move() noexcept {
    if (failed_) [[unlikely]]
        return 0;
    std::uint32_t work = 0;
    if (!tx_active_.empty())
        work += send_turns();
    for (const auto& link : incoming_)
        work += receive_requests(*link);
    if (!rx_active_.empty())
        work += answer_turns();
    for (const auto& link : incoming_)
        work += receive_responses(*link);
    if (!timers_.empty() || !moderated_cqs_.empty())
        look_at_clock();
    if (!overrun_cqs_.empty()) [[unlikely]]
        kill_overrun_cqs();
    return work;
}

std::uint32_t Engine::send_turns() noexcept {
    std::uint32_t work = 0;
    for (std::uint32_t turn = 0; turn < kTurnsMax; ++turn) {
        SoftQp* qp = tx_active_.first();
        if (qp == nullptr)
            break;
        tx_active_.remove(*qp);
        bool more = false;
        work += transmit(*qp, more);
        if (more)
            tx_active_.push_back(*qp);
    }
    return work;
}

std::uint32_t Engine::answer_turns() noexcept {
    std::uint32_t work = 0;
    for (std::uint32_t turn = 0; turn < kTurnsMax; ++turn) {
        SoftQp* qp = rx_active_.first();
        if (qp == nullptr)
            break;
        rx_active_.remove(*qp);
        bool more = false;
        work += answer(*qp, more);
        if (more)
            rx_active_.push_back(*qp);
    }
    return work;
}

std::uint32_t Engine::receive_requests(LinkPair& link) noexcept {
    std::uint32_t work = 0;
    for (; work < kReceiveMax; ++work) {
        const Packet* packet = next_packet(link.requests);
        if (packet == nullptr)
            break;
        if (SoftQp* qp = find(*packet)) {
            solicited_ = (packet->flags & kSolicitedEvent) != 0;
            on_request(*qp, *packet);
        }
        link.requests.pop(*packet);
    }
    if (work != 0) {
        link.requests.release();
        if (link.local)
            link.requests.rewind_if_empty();
    }
    return work;
}

std::uint32_t Engine::receive_responses(LinkPair& link) noexcept {
    std::uint32_t work = 0;
    for (; work < kReceiveMax; ++work) {
        const Packet* packet = next_packet(link.responses);
        if (packet == nullptr)
            break;
        if (SoftQp* qp = find(*packet))
            on_response(*qp, *packet);
        link.responses.pop(*packet);
    }
    if (work != 0) {
        link.responses.release();
        if (link.local)
            link.responses.rewind_if_empty();
    }
    return work;
}

/// Returns the link's oldest packet that the fault plan does not drop. Returns null if there is none, or if the fault
/// plan delays it.
const Packet* Engine::next_packet(Link& link) noexcept {
    if (link.held_until_ns() != 0 || core_.faults.armed(SoftFault::Kind::lose_packet, SoftFault::Kind::delay_packet))
        [[unlikely]] {
        return packet_after_faults(link);
    }
    return link.peek();
}

[[gnu::cold, gnu::noinline]] const Packet* Engine::packet_after_faults(Link& link) noexcept {
    if (const std::uint64_t until = link.held_until_ns(); until != 0) {
        if (now_ns() < until)
            return nullptr;
        link.hold_until(0);
        return link.peek();
    }
    for (const Packet* packet = link.peek(); packet != nullptr; packet = link.peek()) {
        if (core_.faults.meet(SoftFault::Kind::lose_packet, packet->dest_qpn)) {
            link.pop(*packet);
            link.release();
            continue;
        }
        const auto late = core_.faults.meet(SoftFault::Kind::delay_packet, packet->dest_qpn);
        if (!late)
            return packet;
        link.hold_until(now_ns() + late->delay_ns);
        break;
    }
    return nullptr;
}

SoftQp* Engine::find(const Packet& packet) noexcept {
    SoftQp* qp = qps_[packet.dest_qpn & (kQpsPerEngineMax - 1)];
    // Relaxed: see DeviceCore::port_up.
    if (qp == nullptr || !core_.port_up.load(std::memory_order_relaxed))
        return nullptr;
    if (qp->dest_qpn != packet.src_qpn || packet.kind == PacketKind::datagram) [[unlikely]]
        return packet.kind == PacketKind::datagram && qp->qp_type == IBV_QPT_UD ? qp : nullptr;
    return qp;
}

bool Engine::path_open(const SoftQp& qp) const noexcept {
    // Both loads are relaxed: a packet that is sent around the moment of a change may be lost or not.
    return qp.peer != nullptr && !qp.peer->receiver_gone.load(std::memory_order_relaxed) &&
           core_.port_up.load(std::memory_order_relaxed);
}

bool Engine::has_packets() const noexcept {
    const auto waits = [](const Link& link) { return link.held_until_ns() == 0 && !link.empty_for_sleeper(); };
    return !failed_ && std::any_of(incoming_.begin(), incoming_.end(),
                                   [&](const auto& link) { return waits(link->requests) || waits(link->responses); });
}

// ---- completions ----

void Engine::push_cqe(SoftCq& cq, SoftQp& qp, const ibv_wc& wc, std::uint32_t freed, bool receive) noexcept {
    if (cq.dead) [[unlikely]] {
        held_ = {};
        return;
    }
    if ((cq.tail - cq.head == cq.capacity || core_.faults.armed(SoftFault::Kind::overrun)) && overruns(cq, qp))
        [[unlikely]] {
        return;
    }
    Cqe& entry = cq.entries[cq.tail & cq.mask];
    entry.wc = wc;
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]]
        spoil(entry.wc);
    if (cq.keeps_more) [[unlikely]]
        keep_more(cq, cq.tail & cq.mask);
    entry.qp = &qp;
    entry.freed = freed;
    entry.receive = receive;
    ++cq.tail;
    if (cq.armed != Armed::no) [[unlikely]]
        notify(cq, wc, receive);
}

/// Fills in the payload and the time that the CQ keeps for the entry in this slot. A failed completion has no time: as
/// on an HCA, the place of the time holds syndromes.
[[gnu::cold, gnu::noinline]] void Engine::keep_more(SoftCq& cq, std::uint32_t slot) noexcept {
    const Cqe& entry = cq.entries[slot];
    if (!cq.held.empty())
        cq.held[slot] = std::exchange(held_, {});
    if (!cq.times.empty())
        cq.times[slot] =
            entry.wc.status == IBV_WC_SUCCESS ? now_ns() : std::uint64_t{entry.wc.byte_len} << 32 | entry.wc.vendor_err;
}

/// Called when a completion has come to an armed CQ. Raises the CQ's event if this completion calls for it. A failed
/// completion counts as solicited (IBTA 11.4.2.2).
[[gnu::cold, gnu::noinline]] void Engine::notify(SoftCq& cq, const ibv_wc& wc, bool receive) noexcept {
    const bool solicited = wc.status != IBV_WC_SUCCESS || (receive && solicited_);
    if (cq.armed == Armed::solicited && !solicited)
        return;
    Moderation& moderation = cq.moderation;
    if (++moderation.held < moderation.count) {
        if (moderation.until_ns == 0) {
            moderation.until_ns = now_ns() + moderation.period_ns;
            moderated_cqs_.push_back(&cq);
            doorbell_->ring();  // the engine's thread, if it sleeps, does not know of this timer
        }
        return;
    }
    std::erase(moderated_cqs_, &cq);
    cq.events_to->raise(cq);
}

/// Raises events that were held back for their whole period.
[[gnu::cold, gnu::noinline]] void Engine::run_moderation(std::uint64_t now_ns) noexcept {
    std::erase_if(moderated_cqs_, [now_ns](SoftCq* cq) {
        if (now_ns < cq->moderation.until_ns)
            return false;
        cq->events_to->raise(*cq);
        return true;
    });
}

/// Returns true if a completion is lost because its CQ has no room, or because the fault plan says so. Then this
/// function also handles the overrun.
[[gnu::cold, gnu::noinline]] bool Engine::overruns(SoftCq& cq, const SoftQp& qp) noexcept {
    if (cq.tail - cq.head != cq.capacity && !core_.faults.meet(SoftFault::Kind::overrun, qp.qp_num))
        return false;
    held_ = {};
    if (core_.profile.overrun_cq_lives) {
        core_.events.raise(IBV_EVENT_CQ_ERR, cq.plain());
        return true;
    }
    // The CQ's QPs go to error only at the end of move(): their state must not change while a caller of this function
    // uses them.
    cq.dead = true;
    overrun_cqs_.push_back(&cq);
    return true;
}

/// In a failed completion only wr_id, status, qp_num and vendor_err are valid. On hardware the other fields hold
/// arbitrary values, and even the opcode may not fit the queue. So this function fills them with garbage.
[[gnu::cold, gnu::noinline]] void Engine::spoil(ibv_wc& wc) noexcept {
    const auto garbage = [this] {
        garbage_ ^= garbage_ << 13;
        garbage_ ^= garbage_ >> 7;
        garbage_ ^= garbage_ << 17;
        return static_cast<std::uint32_t>(garbage_ >> 16);
    };
    const std::uint32_t opcode = garbage();
    static_assert(sizeof(wc.opcode) == sizeof(opcode));
    std::memcpy(&wc.opcode, &opcode, sizeof(opcode));  // may be no value of the enumeration
    wc.vendor_err = vendor_err_of(wc.status);
    wc.byte_len = garbage();
    wc.imm_data = garbage();
    wc.src_qp = garbage();
    wc.wc_flags = garbage();
    wc.pkey_index = static_cast<std::uint16_t>(garbage());
    wc.slid = static_cast<std::uint16_t>(garbage());
    wc.sl = static_cast<std::uint8_t>(garbage());
    wc.dlid_path_bits = static_cast<std::uint8_t>(garbage());
}

/// A CQ that was overrun is dead. Its event is raised once, and each QP that uses the CQ has a catastrophic error of
/// its own (IBTA 11.2.8 and 10.2.6).
[[gnu::cold, gnu::noinline]] void Engine::kill_overrun_cqs() noexcept {
    while (!overrun_cqs_.empty()) {
        SoftCq* cq = overrun_cqs_.back();
        overrun_cqs_.pop_back();
        core_.events.raise(IBV_EVENT_CQ_ERR, cq->plain());
        for (std::uint32_t index = 0; index < kQpsPerEngineMax; ++index) {
            SoftQp* qp = qps_[index];
            if (qp == nullptr || (&qp->send_queue_cq() != cq && &qp->recv_queue_cq() != cq))
                continue;
            if (qp->current == IBV_QPS_RESET || qp->current == IBV_QPS_ERR)
                continue;
            core_.events.raise(IBV_EVENT_QP_FATAL, qp);
            enter_error(*qp, false);
        }
    }
}

void Engine::enter_error(SoftQp& qp, bool keep_responses) noexcept {
    if (qp.current == IBV_QPS_ERR)
        return;
    qp.current = IBV_QPS_ERR;
    qp.tx.waiting_rnr = false;
    qp.tx.local_error = IBV_WC_SUCCESS;
    timers_.remove(qp);
    if (!keep_responses) {
        qp.rx.jobs_head = qp.rx.jobs_tail;
        qp.rx.reads_queued = 0;
        rx_active_.remove(qp);
    }
    qp.rx.message = Responder::Message::none;
    qp.late_receives = qp.rq.posted;
    activate(qp);
}

void Engine::enter_send_error(SoftQp& qp) noexcept {
    if (qp.current != IBV_QPS_RTS)
        return;
    qp.current = IBV_QPS_SQE;
    qp.tx.local_error = IBV_WC_SUCCESS;
    activate(qp);
}

void Engine::leave_send_error(SoftQp& qp) noexcept {
    (void)flush_sends(qp, std::numeric_limits<std::uint32_t>::max());
    qp.tx.cursor = qp.tx.assigned = qp.sq.done;
    qp.tx.cursor_packet = 0;
    qp.tx.una_psn = qp.tx.next_psn;
}

std::uint32_t Engine::flush_sends(SoftQp& qp, std::uint32_t most) noexcept {
    std::uint32_t work = 0;
    ibv_wc wc{};
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.qp_num = qp.qp_num;
    for (; work < most && qp.sq.done != qp.sq.posted; ++work) {
        wc.wr_id = qp.sq.at(qp.sq.done).wr_id;
        ++qp.sq.done;
        push_cqe(qp.send_queue_cq(), qp, wc, qp.sq.done, false);
    }
    return work;
}

/// The count of the first receive that is not flushed.
std::uint32_t Engine::flush_end(const SoftQp& qp) const noexcept {
    return core_.profile.keeps_late_receives ? qp.late_receives : qp.rq.posted;
}

std::uint32_t Engine::flush(SoftQp& qp) noexcept {
    std::uint32_t work = flush_sends(qp, kFlushPerTurnMax);
    ibv_wc wc{};
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.qp_num = qp.qp_num;
    for (; work < kFlushPerTurnMax && qp.rq.done != flush_end(qp); ++work) {
        wc.wr_id = qp.rq.at(qp.rq.done).wr_id;
        ++qp.rq.done;
        push_cqe(qp.recv_queue_cq(), qp, wc, qp.rq.done, true);
    }
    if (qp.shared != nullptr && !qp.last_wqe_said) [[unlikely]] {
        // Only the receive that this QP has taken ends here; receives that are still in the SRQ serve other QPs (IBTA
        // 10.2.9).
        if (qp.receive_taken)
            fail_recv(qp, IBV_WC_WR_FLUSH_ERR);
        qp.last_wqe_said = true;
        core_.events.raise(IBV_EVENT_QP_LAST_WQE_REACHED, &qp);
        ++work;
    }
    return work;
}

// ---- timers ----

std::uint64_t Engine::now_ns() noexcept {
    if (!clock_held_)
        last_now_ns_ = std::max(last_now_ns_, core_.clock());
    return last_now_ns_;
}

void Engine::hold_clock(std::uint64_t now_ns) noexcept {
    clock_held_ = true;
    last_now_ns_ = std::max(last_now_ns_, now_ns);
}

/// An acknowledgement timer starts at the first look at the clock after its packet was sent. So it never fires early,
/// and it is enough to read the clock once in many moves.
void Engine::look_at_clock() noexcept {
    if (clock_held_)
        return;
    if (moves_to_clock_ != 0) {
        --moves_to_clock_;
        return;
    }
    moves_to_clock_ = kMovesPerClock - 1;
    tick(now_ns());
}

void Engine::tick(std::uint64_t now_ns) noexcept {
    if (!moderated_cqs_.empty()) [[unlikely]]
        run_moderation(now_ns);
    if (failed_ || (!timers_unset_ && now_ns < next_deadline_ns_))
        return;
    timers_unset_ = false;
    next_deadline_ns_ = std::numeric_limits<std::uint64_t>::max();
    for (SoftQp* qp = timers_.first(); qp != nullptr;) {
        SoftQp* next = timers_.next(*qp);
        run_timer(*qp, now_ns);
        if (qp->timer_hook.linked)
            next_deadline_ns_ = std::min(next_deadline_ns_, qp->tx.deadline_ns);
        qp = next;
    }
}

void Engine::run_timer(SoftQp& qp, std::uint64_t now_ns) noexcept {
    Requester& tx = qp.tx;
    if (tx.waiting_rnr) {
        if (now_ns < tx.deadline_ns)
            return;
        tx.waiting_rnr = false;
        tx.deadline_ns = 0;
        timers_.remove(qp);
        activate(qp);
    } else if (qp.sq.done == tx.assigned) {
        timers_.remove(qp);  // all sent WQEs were acknowledged
        tx.deadline_ns = 0;
    } else if (tx.deadline_ns == 0) {
        tx.deadline_ns = now_ns + tx.ack_timeout_ns;
    } else if (now_ns >= tx.deadline_ns) {
        tx.deadline_ns = now_ns + tx.ack_timeout_ns;
        if (!still_under_way(qp, now_ns))
            retry(qp);
        else if (tx.waits_since_ns == 0)
            tx.waits_since_ns = now_ns;
        else if (now_ns - tx.waits_since_ns >= kHostPatienceNs)
            retry(qp);  // the peer's thread has not polled for too long
    }
}

/// Whether packets of the connection may be waiting in a link because an engine does not move. An HCA answers even if
/// its host does not poll, so a host that does not poll must not look like a lost packet.
bool Engine::still_under_way(const SoftQp& qp, std::uint64_t now_ns) noexcept {
    if (!path_open(qp) || !qp.peer->attended.load(std::memory_order_relaxed))
        return false;
    // A delay by the fault plan stands for the network, so a delayed packet does not count. A packet that still waits
    // after its delay waits for the host.
    const auto due = [now_ns](const Link& link) { return link.held_until_ns() <= now_ns; };
    if (!qp.peer->requests.drained() && due(qp.peer->requests))
        return true;
    return std::any_of(incoming_.begin(), incoming_.end(), [&](const auto& link) {
        return link->from == qp.peer->to && due(link->responses) && link->responses.peek() != nullptr;
    });
}

std::uint64_t Engine::next_deadline_ns() const noexcept {
    std::uint64_t next = std::numeric_limits<std::uint64_t>::max();
    if (failed_)
        return next;
    for (const auto& link : incoming_) {
        for (const Link* way : {&link->requests, &link->responses}) {
            if (const std::uint64_t until = way->held_until_ns(); until != 0)
                next = std::min(next, until);
        }
    }
    for (const SoftCq* cq : moderated_cqs_)
        next = std::min(next, cq->moderation.until_ns);
    if (timers_.empty())
        return next;
    return std::min(next, timers_unset_ ? last_now_ns_ : next_deadline_ns_);
}

}  // namespace pollcore::soft
