// The part of an engine that the control side uses: makes the engine, adds and removes QPs, CQs and links.
#include <algorithm>
#include <mutex>

#include "device/soft/channel.hpp"
#include "device/soft/engine.hpp"

namespace pollcore::soft {

Engine::Engine(DeviceCore& core, std::shared_ptr<Fabric> fabric)
    : core_(core), qps_(kQpsPerEngineMax), fabric_(std::move(fabric)) {
    id_ = fabric_->add(*this);
}

Engine::~Engine() {
    fabric_->remove(*this);
}

void Engine::fail() noexcept {
    fabric_->remove(*this);  // not under our lock, because this takes the locks of other engines
    const std::lock_guard guard(lock_);
    failed_ = true;
}

bool Engine::add(SoftQp& qp) {
    // Places are given out in turn, so that the number of a destroyed QP is not used again soon. With the profile's
    // reuses_qp_numbers, the lowest free place is taken instead.
    if (core_.profile.reuses_qp_numbers)
        last_index_ = kQpsPerEngineMax - 1;
    for (std::uint32_t tried = 0; tried < kQpsPerEngineMax; ++tried) {
        last_index_ = (last_index_ + 1) % kQpsPerEngineMax;
        if (qps_[last_index_] != nullptr)
            continue;
        qps_[last_index_] = &qp;
        qp.qp_num = id_ << kQpIndexBits | last_index_;
        ++qps_in_use_;
        mark_incoming_attended();
        return true;
    }
    return false;
}

void Engine::remove(SoftQp& qp) noexcept {
    reset(qp);
    qps_[qp.qp_num & (kQpsPerEngineMax - 1)] = nullptr;
    --qps_in_use_;
    mark_incoming_attended();
}

void Engine::reset(SoftQp& qp) noexcept {
    tx_active_.remove(qp);
    rx_active_.remove(qp);
    timers_.remove(qp);
    // The QP's CQEs stay in their CQs, but they must not give slots back any more.
    for (SoftCq* cq : {&qp.send_queue_cq(), &qp.recv_queue_cq()}) {
        if (core_.profile.purges_cqes)
            purge(*cq, qp);
        for (std::uint32_t at = cq->head; at != cq->tail; ++at) {
            Cqe& entry = cq->entries[at & cq->mask];
            if (entry.qp == &qp) {
                // The SRQ goes on, so its slot is given back now.
                if (entry.receive && qp.shared != nullptr)
                    entry.give_back();
                entry.qp = nullptr;
            }
        }
    }
    if (qp.receive_taken)
        ++qp.shared->rq.freed;  // this receive ends without a completion
    qp.receive_taken = qp.last_wqe_said = false;
    qp.sq.clear();
    qp.rq.clear();
    qp.tx = {};
    Responder& rx = qp.rx;
    rx.expected_psn = 0;
    rx.message = Responder::Message::none;
    rx.nak_sent = rx.heard = false;
    rx.offset = rx.rkey = rx.remaining = 0;
    rx.va = 0;
    rx.rnr_naks = 0;
    rx.jobs_head = rx.jobs_tail = rx.reads_queued = rx.atomics_next = 0;
    for (std::uint32_t i = 0; i <= rx.jobs_mask; ++i)
        rx.atomics[i] = {};
    qp.peer = nullptr;
    qp.dest_qpn = 0;
    qp.access = 0;
    qp.current = IBV_QPS_RESET;
}

/// Removes the QP's completions from the CQ. Completions of other QPs move up and keep their order.
void Engine::purge(SoftCq& cq, const SoftQp& qp) noexcept {
    std::uint32_t kept = cq.head;
    for (std::uint32_t at = cq.head; at != cq.tail; ++at) {
        const Cqe& entry = cq.entries[at & cq.mask];
        if (entry.wc.qp_num == qp.qp_num) {
            if (entry.qp == &qp && entry.receive && qp.shared != nullptr)
                entry.give_back();  // the SRQ goes on, so its slot is given back
            continue;
        }
        cq.entries[kept & cq.mask] = cq.entries[at & cq.mask];
        if (!cq.held.empty())
            cq.held[kept & cq.mask] = cq.held[at & cq.mask];
        if (!cq.times.empty())
            cq.times[kept & cq.mask] = cq.times[at & cq.mask];
        ++kept;
    }
    cq.tail = kept;
}

void Engine::drop_incoming(std::uint32_t from) noexcept {
    std::erase_if(incoming_, [from](const auto& link) { return link->from == from; });
}

void Engine::add_outgoing(std::shared_ptr<LinkPair> link) {
    if (outgoing_.size() <= link->to)
        outgoing_.resize(link->to + 1);
    outgoing_[link->to] = std::move(link);
}

void Engine::drop_outgoing(std::uint32_t to) noexcept {
    if (to < outgoing_.size())
        outgoing_[to].reset();
}

void Engine::add_incoming(std::shared_ptr<LinkPair> link) {
    incoming_.push_back(std::move(link));
    mark_incoming_attended();
}

/// No thread polls for an engine without QPs, so packets that wait for such an engine count as lost.
void Engine::mark_incoming_attended() noexcept {
    for (const auto& link : incoming_)
        link->attended.store(qps_in_use_ != 0, std::memory_order_relaxed);
}

void Engine::mark_incoming_gone() noexcept {
    for (const auto& link : incoming_)
        link->receiver_gone.store(true, std::memory_order_relaxed);
}

void Engine::add(SoftCq&) {
    overrun_cqs_.reserve(cqs_ + 1);
    moderated_cqs_.reserve(cqs_ + 1);
    ++cqs_;
}

void Engine::remove(SoftCq& cq) noexcept {
    --cqs_;
    std::erase(overrun_cqs_, &cq);
    std::erase(moderated_cqs_, &cq);
    if (cq.events_to != nullptr)
        cq.events_to->forget(cq);
}

}  // namespace pollcore::soft
