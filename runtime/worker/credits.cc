// Credits: what waits for the peer's receives, and what the peer is told of ours.
//
// A queue pair stands in flows_ while something about it can only be seen in its control block, or is still to be written to the
// peer's: its terms have not come, requests wait for credit, or grants are due. All of it is looked at once a step.
#include <algorithm>

#include "worker/worker.hpp"

namespace pollcore {
namespace {

// How often a worker that sleeps looks at control blocks, whose writing makes no event: for credit that requests wait for, and
// for the terms of a peer that has not begun.
constexpr std::uint64_t kLookForCreditNs = 50'000;
constexpr std::uint64_t kLookForTermsNs = 1'000'000;

}  // namespace

void Worker::start_flow(WorkerQp& qp, const Command& command) noexcept {
    CreditFlow& flow = *qp.flow;
    flow.in_order = command.in_order;
    flow.reads = command.reads;
    flow.readable = command.readable;
    flow.peer_addr = command.peer_addr;
    flow.peer_rkey = command.lkey;
    flow.connected = true;
    list(qp);
}

void Worker::list(WorkerQp& qp) noexcept {
    if (!qp.flow->listed) {
        qp.flow->listed = true;
        flows_.push_back(&qp);
    }
}

[[gnu::noinline]] std::uint32_t Worker::turn_flows() noexcept {
    std::uint32_t work = 0;
    for (std::size_t i = 0; i < flows_.size();) {
        WorkerQp& qp = *flows_[i];
        CreditFlow& flow = *qp.flow;
        work += turn_flow(qp);
        const bool over = qp.state == QpState::error || !flow.connected;
        if (over ? in_ring(qp) : flow.unsettled() || qp.parked != 0) {
            ++i;
            continue;
        }
        flow.listed = false;
        flows_[i] = flows_.back();
        flows_.pop_back();
    }
    return work;
}

std::uint32_t Worker::turn_flow(WorkerQp& qp) noexcept {
    CreditFlow& flow = *qp.flow;
    if (qp.state == QpState::error && in_ring(qp)) {
        return take_records(qp);  // what came before, and then the end
    }
    if (!flow.connected || qp.state != QpState::ready || qp.parked != 0) {
        return 0;
    }
    std::uint32_t work = 0;
    if (!flow.agreed) {
        if (const auto terms = flow.block->read_terms()) {
            if (const FlowFault fault = check_terms(*terms, flow.rings ? FlowTerms::kRing : 0); fault != FlowFault::none) {
                fail_flow(qp, fault);
                return 1;
            }
            flow.depth = terms->depth;
            flow.message_max = terms->message_max;
            flow.rendezvous_max = flow.readable && !flow.rings ? terms->rendezvous_max : 0;
            if (flow.rings) {
                aim(flow, *terms);
            }
            flow.agreed = true;
            publish_record(qp);
            ++work;
        }
    }
    // The first who has something to say begins. A peer that is not connected yet would answer nothing, and nothing may be lost
    // by asking it too early: what waits here was submitted by an application that counts on it.
    if (!flow.terms_sent && (flow.agreed || !flow.waiting.empty())) {
        flow.terms_sent = write_terms(qp);
        work += flow.terms_sent;
    }
    if (flow.receiving.state == AnnouncedRecv::State::waiting) {
        work += read_announced(qp);
        if (qp.state != QpState::ready) {
            return work;
        }
    }
    if (flow.announced.open()) {
        work += end_announced(qp);
    }
    if (flow.agreed && flow.terms_sent && flow.owes()) {
        work += write_grants(qp);
    }
    if (flow.agreed && !flow.waiting.empty()) {
        work += post_waiting(qp);
    }
    if (flow.terms_sent) {
        work += probe(qp);
    }
    return work;
}

// A peer that has vanished is silent, as one is that has no receives. So that what waits for it learns of it, it is told once more
// what it knows: that write ends by the transport's retries, and the queue pair with it.
bool Worker::probe(WorkerQp& qp) noexcept {
    CreditFlow& flow = *qp.flow;
    if (!flow.waits_for_peer() || turn_.options.probe_cycles == 0) {
        flow.probe_at = 0;
        return false;
    }
    if (flow.probe_at != 0 && turn_.now() < flow.probe_at) {
        return false;
    }
    const bool due = std::exchange(flow.probe_at, turn_.now() + turn_.options.probe_cycles) != 0;
    return due && write_grants(qp);
}

// ---- As a sender ----

/// For what cannot go by what is known. False: it goes now, since more is known.
[[gnu::noinline]] bool Worker::keep_waiting(WorkerSession& session, WorkerQp& qp, const WorkRequest& request,
                                            std::size_t slot, std::uint32_t length) noexcept {
    CreditFlow& flow = *qp.flow;
    if (flow.agreed && flow.waiting.empty() && !flow.announced.open() && (!take_grants(qp) || flow.admit(request.opcode, length))) {
        return false;  // or it is in error now, and says so when the request is posted
    }
    flow.waiting.push(session, request, session.submissions(), slot);
    if (request.opcode == Opcode::bind_mw) {
        hold_bind(request);
    }
    turn_.counters.waits_for_credit.add();
    list(qp);
    return true;
}

/// Whether the peer has said that it takes no message so long.
bool Worker::is_too_long(const WorkerQp& qp, const WorkRequest& request, std::uint64_t length) noexcept {
    const CreditFlow& flow = *qp.flow;
    return flow.agreed && is_send(request.opcode) && (length > flow.message_max || flow.depth == 0) && !can_announce(qp, request, length);
}

/// False: what stands there was a lie, and the queue pair is in error.
bool Worker::take_grants(WorkerQp& qp) noexcept {
    if (const FlowFault fault = qp.flow->take_grants(); fault != FlowFault::none) {
        fail_flow(qp, fault);
        return false;
    }
    return true;
}

/// A request that was not posted after all takes no receive. The place of a record is gone, and so is the connection.
void Worker::give_credit_back(WorkerQp& qp, Opcode opcode) noexcept {
    if (takes_receive(opcode) && !qp.flow->rings) {
        --qp.flow->consumed;
    }
}

// The queue pair is in error: what waits ends behind what was posted.
[[gnu::cold]] void Worker::flush_waiting(WorkerQp& qp) noexcept {
    if (qp.flow == nullptr) {
        return;
    }
    flush_announced(qp);
    while (!qp.flow->waiting.empty()) {
        const WorkRequest request = qp.flow->waiting.copy(0);
        InFlightEntry& entry = qp.sends.push();
        entry = {.tag = request.tag,
                 .session = &qp.flow->waiting.front_session(),
                 .lkey = request.sge.lkey,
                 .opcode = request.opcode,
                 .flags = InFlightEntry::known(request.flags),
                 .kind = InFlightEntry::Kind::unposted,
                 .status = qp.unposted_status};
        if (request.opcode == Opcode::bind_mw) {
            let_bind_go(request);
            begin_bind(entry, request);
        }
        qp.flow->waiting.pop(slots_of(request));
    }
    drain_unposted(qp, qp.sends);
}

// ---- As a receiver ----

/// Receives were posted, or, where `n` wraps, not posted after all.
void Worker::count_posted(WorkerQp& qp, std::uint32_t n) noexcept {
    qp.flow->posted += n;
    list(qp);
}

// Of a shared receive queue each peer has its part, and together they have no more than is posted. The first in turn is the first
// to get what there is.
void Worker::grant(WorkerSrq& srq) noexcept {
    for (std::size_t i = 0; i < srq.creditors.size() && srq.granted < srq.receives.size(); ++i) {
        srq.next_granted = srq.next_granted + 1 < srq.creditors.size() ? srq.next_granted + 1 : 0;
        grant(srq, *srq.creditors[srq.next_granted]);
    }
}

void Worker::grant(WorkerSrq& srq, WorkerQp& qp) noexcept {
    if (srq.granted >= srq.receives.size() || qp.state == QpState::error || qp.state == QpState::closed) {
        return;
    }
    const std::uint32_t n = std::min(srq.receives.size() - srq.granted, srq.granted_max - qp.flow->unused);
    if (n != 0) {
        qp.flow->unused += n;
        srq.granted += n;
        count_posted(qp, n);
    }
}

/// A message has taken a receive.
void Worker::use_grant(WorkerSrq& srq, WorkerQp& qp) noexcept {
    CreditFlow& flow = *qp.flow;
    if (flow.used == flow.told || flow.unused == 0) [[unlikely]] {
        fail_flow(qp, FlowFault::too_many_messages);  // it took one that is another's
        return;
    }
    ++flow.used;
    --flow.unused;
    --srq.granted;
    grant(srq, qp);
}

/// What the peer did not use is the others' again.
void Worker::drop_grants(WorkerQp& qp) noexcept {
    if (qp.flow != nullptr && qp.srq != nullptr) {
        qp.srq->granted -= std::exchange(qp.flow->unused, 0);
    }
}

bool Worker::write_grants(WorkerQp& qp) noexcept {
    CreditFlow& flow = *qp.flow;
    const std::uint32_t posted = flow.posted;
    const std::uint32_t read = flow.read;
    std::array<std::uint64_t, 2> words{GrantWord::pack(posted), GrantWord::pack(read)};
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(words.data()), .length = sizeof(words), .lkey = 0};
    if (!write_own(qp, sge, ControlBlock::kGrants, IBV_SEND_INLINE)) {
        return false;
    }
    flow.told = posted;
    flow.read_told = read;
    turn_.counters.grants.add();
    return true;
}

bool Worker::write_terms(WorkerQp& qp) noexcept {
    qp.flow->own.rendezvous_max = qp.flow->reads && qp.rendezvous.pool != nullptr ? qp.rendezvous.pool->buffer_bytes : 0;
    if (qp.flow->rings) {
        offer_ring(qp);
    }
    qp.flow->block->set_own(qp.flow->own);
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(qp.flow->block->own.data()), .length = sizeof(FlowTerms), .lkey = qp.flow->lkey};
    return write_own(qp, sge, ControlBlock::kTerms, 0);
}

/// Into the peer's block. False: not now, since all its slots are in flight or the provider refused.
bool Worker::write_own(WorkerQp& qp, ibv_sge& sge, std::size_t to, unsigned flags) noexcept {
    CreditFlow& flow = *qp.flow;
    if (flow.writes == CreditFlow::kWritesMax) {
        return false;
    }
    const bool signal = flow.unsignaled_writes + 1 >= CreditFlow::kWritesMax / 2;
    ibv_send_wr wr{};
    wr.wr_id = WrId{qp.handle, false, qp.sends.next_position()}.pack();
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = flags | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u);
    wr.wr.rdma.remote_addr = flow.peer_addr + to;
    wr.wr.rdma.rkey = flow.peer_rkey;
    qp.sends.push() = {.kind = InFlightEntry::Kind::flow};
    ibv_send_wr* bad = nullptr;
    turn_.counters.send_doorbells.add();
    if (ibv_post_send(qp.qp, &wr, &bad) != 0) {
        qp.sends.pop_back();
        turn_.counters.post_failures.add();
        return false;
    }
    ++flow.writes;
    flow.unsignaled_writes = signal ? 0 : flow.unsignaled_writes + 1;
    return true;
}

// ---- Ends ----

[[gnu::cold]] void Worker::fail_flow(WorkerQp& qp, FlowFault fault) noexcept {
    if (qp.state == QpState::error) {
        return;
    }
    turn_.counters.flow_faults.add(!is_own(fault));
    turn_.answers.say(AnswerKind::flow_failed, qp.handle.index, static_cast<std::uint32_t>(qp.handle.generation) << 8 | static_cast<std::uint32_t>(fault));
    fail(qp, status_of(fault), false);
}

void Worker::dismiss(WorkerQp& qp) noexcept {
    if (qp.flow == nullptr) {
        return;
    }
    if (qp.srq != nullptr) {
        std::erase(qp.srq->creditors, &qp);
        drop_grants(qp);
        grant(*qp.srq);
    }
    if (qp.flow->listed) {
        std::erase(flows_, &qp);
        qp.flow->listed = false;
    }
    leave_ring(qp);
    --flow_qps_;
}

// ---- Asleep ----

bool Worker::flows_have_news(std::uint64_t now) noexcept {
    return std::any_of(flows_.begin(), flows_.end(), [now](const WorkerQp* qp) {
        const CreditFlow& flow = *qp->flow;
        if (!flow.connected || qp->state != QpState::ready) {
            return false;
        }
        // What is due and could not be written is tried again.
        if ((flow.agreed && flow.owes()) || (flow.receiving.state == AnnouncedRecv::State::waiting && qp->rendezvous.wanted() != 0)) {
            return true;
        }
        if (flow.announced.open() && flow.peer_has_read()) {  // where it has not arrived, its completion is there to be polled
            return true;
        }
        if ((!flow.terms_sent && (flow.agreed || !flow.waiting.empty()))) {
            return true;
        }
        if (flow.probe_at != 0 && now >= flow.probe_at) {
            return true;
        }
        if (!flow.agreed) {
            return flow.block->read_terms().has_value();
        }
        const auto word = GrantWord::unpack(flow.block->grants[0].load(std::memory_order_acquire));
        return !flow.waiting.empty() && !flow.announced.open() && word && static_cast<std::int32_t>(*word - flow.granted) > 0;
    });
}

std::uint64_t Worker::look_every_ns() const noexcept {
    if (flows_.empty()) {
        return CompletionChannel::kNever;
    }
    const bool waits = std::any_of(flows_.begin(), flows_.end(), [](const WorkerQp* qp) {
        return qp->flow->waits_for_peer();
    });
    return waits ? kLookForCreditNs : kLookForTermsNs;
}

}  // namespace pollcore
