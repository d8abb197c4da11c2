// The responder: executes request packets in PSN order and queues the answers (IBTA 9.7.4, 9.7.5, 9.9.3). A QP's
// answers go through the QP's queue of jobs, because they must leave in the order of their requests.
#include <algorithm>
#include <span>

#include "device/soft/engine.hpp"
#include "device/soft/scatter_gather.hpp"

namespace pollcore::soft {

namespace {

[[nodiscard]] int access_of(PacketKind kind) noexcept {
    switch (kind) {
        case PacketKind::write: return IBV_ACCESS_REMOTE_WRITE;
        case PacketKind::read_request: return IBV_ACCESS_REMOTE_READ;
        default: return IBV_ACCESS_REMOTE_ATOMIC;
    }
}

[[nodiscard]] std::uint64_t execute_atomic(std::byte* host, const Packet& packet) noexcept {
    const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(host));
    // Sequentially consistent: a CPU, or another engine, may use the word as a lock.
    if (packet.kind == PacketKind::fetch_add)
        return word.fetch_add(packet.compare_add, std::memory_order_seq_cst);
    std::uint64_t found = packet.compare_add;
    word.compare_exchange_strong(found, packet.swap, std::memory_order_seq_cst);
    return found;
}

}  // namespace

void Engine::on_request(SoftQp& qp, const Packet& packet) noexcept {
    if (qp.qp_type != IBV_QPT_RC) [[unlikely]]
        return on_unacknowledged(qp, packet);
    if (qp.current != IBV_QPS_RTS && qp.current != IBV_QPS_RTR)
        return;
    Responder& rx = qp.rx;
    // If there is no room for an answer, the packet is dropped as if the network had lost it. The requester sends it
    // again.
    if (rx.full()) [[unlikely]]
        return;
    if (qp.current == IBV_QPS_RTR && !rx.heard) [[unlikely]] {
        rx.heard = true;
        core_.events.raise(IBV_EVENT_COMM_EST, &qp);
    }
    const std::int32_t ahead = psn_diff(packet.psn, rx.expected_psn);
    if (ahead < 0) [[unlikely]]
        return on_duplicate(qp, packet);
    if (ahead > 0) [[unlikely]] {
        // A packet before this one was lost. The responder sends one NAK, and then drops packets silently until the
        // lost packet comes again (IBTA 9.7.4.1.1).
        if (rx.nak_sent)
            return;
        rx.nak_sent = true;
        ResponseJob job;
        job.kind = ResponseJob::Kind::nak;
        job.syndrome = static_cast<std::uint8_t>(Nak::sequence);
        job.psn = rx.expected_psn;
        return push_job(qp, job);
    }
    switch (packet.kind) {
        case PacketKind::send: return on_send(qp, packet);
        case PacketKind::write: return on_write(qp, packet);
        case PacketKind::read_request: return on_read(qp, packet);
        case PacketKind::compare_swap:
        case PacketKind::fetch_add: return on_atomic(qp, packet);
        default: return refuse_with_event(qp, Nak::invalid_request);
    }
}

/// Answers a request that was executed before, and whose answer was lost or late. Sends and writes are acknowledged
/// again, reads are executed again, and atomics are answered from the kept results (IBTA 9.7.5.1).
[[gnu::cold, gnu::noinline]] void Engine::on_duplicate(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    ResponseJob job;
    job.psn = packet.psn;
    job.again = true;
    switch (packet.kind) {
        case PacketKind::send:
        case PacketKind::write: return push_ack(qp, psn_add(rx.expected_psn, kPsnMask));
        case PacketKind::read_request:
            job.kind = ResponseJob::Kind::read;
            job.rkey = packet.rkey;
            job.va = packet.va;
            job.length = packet.dma_length;
            return push_job(qp, job);
        case PacketKind::compare_swap:
        case PacketKind::fetch_add: {
            const std::span<const AtomicResult> kept(rx.atomics.data(), rx.jobs_mask + 1);
            const auto found = std::find_if(kept.begin(), kept.end(), [&packet](const AtomicResult& result) {
                return result.valid && result.psn == packet.psn;
            });
            if (found == kept.end())
                return;  // dropped: the packet is older than any atomic that may be outstanding
            job.kind = ResponseJob::Kind::atomic;
            job.value = found->value;
            return push_job(qp, job);
        }
        default: return;
    }
}

void Engine::on_send(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    if ((packet.flags & kFirst) != 0) {
        if (rx.message != Responder::Message::none)
            return refuse_with_event(qp, Nak::invalid_request);
        if (!take_receive(qp))
            return refuse_rnr(qp);
        rx.message = Responder::Message::send;
        rx.offset = 0;
    } else if (rx.message != Responder::Message::send) {
        return refuse_with_event(qp, Nak::invalid_request);
    }
    const RecvWqe& wqe = qp.receive();
    if (wqe.fault != 0) [[unlikely]] {
        fail_recv(qp, static_cast<ibv_wc_status>(wqe.fault));
        return refuse(qp, Nak::remote_operational);
    }
    if (std::uint64_t{rx.offset} + packet.payload_size > wqe.length) [[unlikely]] {
        fail_recv(qp, IBV_WC_LOC_LEN_ERR);
        return refuse(qp, Nak::invalid_request);
    }
    const bool held = qp.payload_in_cqe && hold_payload(qp, wqe, packet);
    if (!held && !scatter(core_.memory, qp.receive_pd(), qp.receive_sges(), rx.offset, packet.payload(),
                          packet.payload_size)) [[unlikely]] {
        fail_recv(qp, IBV_WC_LOC_PROT_ERR);
        return refuse(qp, Nak::remote_operational);
    }
    rx.offset += packet.payload_size;
    const bool invalidate = (packet.flags & kInvalidate) != 0;
    const bool invalidated = invalidate && core_.memory.invalidate(packet.rkey, qp);
    expect_next(qp, 1);
    push_ack(qp, packet.psn);
    if ((packet.flags & kLast) == 0)
        return;
    rx.message = Responder::Message::none;
    ibv_wc wc = received(qp, packet, IBV_WC_RECV);
    if (invalidate) [[unlikely]] {
        // The message itself was complete, and was acknowledged to the sender. Only this side learns of the bad key (an
        // error of class J).
        if (!invalidated) {
            fail_recv(qp, IBV_WC_REM_INV_REQ_ERR);
            return enter_error(qp, true);
        }
        wc.wc_flags = IBV_WC_WITH_INV;
        wc.invalidated_rkey = packet.rkey;
    }
    complete_recv(qp, wc);
}

void Engine::on_write(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    const bool first = (packet.flags & kFirst) != 0;
    const bool last = (packet.flags & kLast) != 0;
    if (first != (rx.message == Responder::Message::none) || rx.message == Responder::Message::send) {
        return refuse_with_event(qp, Nak::invalid_request);
    }
    // An operation that the QP does not permit is an invalid request; a key that does not permit it is an
    // access error (IBTA 9.7.4.1.3 and 9.7.4.1.5).
    if ((qp.access & IBV_ACCESS_REMOTE_WRITE) == 0)
        return refuse_with_event(qp, Nak::invalid_request);
    const std::uint64_t va = first ? packet.va : rx.va;
    const std::uint32_t rkey = first ? packet.rkey : rx.rkey;
    const std::uint32_t remaining = first ? packet.dma_length : rx.remaining;
    if (packet.payload_size > remaining || (last && packet.payload_size != remaining)) {
        return refuse_with_event(qp, Nak::invalid_request);
    }
    const RemoteMemory memory =
        remaining != 0 ? core_.memory.find_remote(rkey, qp, va, remaining, IBV_ACCESS_REMOTE_WRITE) : RemoteMemory();
    const bool takes_receive = (packet.flags & kImmediate) != 0;
    if (remaining != 0 && memory.host() == nullptr) [[unlikely]]
        return refuse_write(qp, takes_receive);
    if (takes_receive) {
        if (!take_receive(qp))
            return refuse_rnr(qp);
        if (const std::uint8_t fault = qp.receive().fault; fault != 0) [[unlikely]] {
            fail_recv(qp, static_cast<ibv_wc_status>(fault));
            return refuse(qp, Nak::remote_operational);
        }
    }

    // If the device promises no order, a thread that polls memory may look at any byte of the write.
    write_to_memory(memory.host(), packet.payload(), packet.payload_size,
                    profile().promises_no_order ? packet.payload_size : kLookedAt);
    if (first)
        rx.offset = 0;
    rx.offset += packet.payload_size;
    rx.va = va + packet.payload_size;
    rx.rkey = rkey;
    rx.remaining = remaining - packet.payload_size;
    rx.message = last ? Responder::Message::none : Responder::Message::write;
    expect_next(qp, 1);
    push_ack(qp, packet.psn);
    if (!takes_receive)
        return;
    complete_recv(qp, received(qp, packet, IBV_WC_RECV_RDMA_WITH_IMM));
}

void Engine::on_read(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    if (rx.message != Responder::Message::none || (qp.access & IBV_ACCESS_REMOTE_READ) == 0 ||
        rx.reads_queued >= qp.max_dest_rd_atomic) [[unlikely]] {
        return refuse_with_event(qp, Nak::invalid_request);
    }
    if (packet.dma_length != 0 &&
        core_.memory.find_remote(packet.rkey, qp, packet.va, packet.dma_length, IBV_ACCESS_REMOTE_READ).host() ==
            nullptr) [[unlikely]] {
        return refuse_with_event(qp, Nak::remote_access);
    }
    ResponseJob job;
    job.kind = ResponseJob::Kind::read;
    job.psn = packet.psn;
    job.rkey = packet.rkey;
    job.va = packet.va;
    job.length = packet.dma_length;
    expect_next(qp, packets_of(packet.dma_length, qp.mtu));
    ++rx.reads_queued;
    push_job(qp, job);
}

void Engine::on_atomic(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    if (rx.message != Responder::Message::none || (qp.access & access_of(packet.kind)) == 0 ||
        rx.reads_queued >= qp.max_dest_rd_atomic || packet.va % sizeof(std::uint64_t) != 0) [[unlikely]] {
        return refuse_with_event(qp, Nak::invalid_request);
    }
    const RemoteMemory memory =
        core_.memory.find_remote(packet.rkey, qp, packet.va, sizeof(std::uint64_t), IBV_ACCESS_REMOTE_ATOMIC);
    std::byte* host = memory.host();
    if (host == nullptr) [[unlikely]]
        return refuse_with_event(qp, Nak::remote_access);
    // The region's memory may be aligned differently from its iova.
    if (reinterpret_cast<std::uintptr_t>(host) % sizeof(std::uint64_t) != 0) {
        return refuse_with_event(qp, Nak::invalid_request);
    }
    ResponseJob job;
    job.kind = ResponseJob::Kind::atomic;
    job.psn = packet.psn;
    job.value = execute_atomic(host, packet);
    rx.atomics[rx.atomics_next++ & rx.jobs_mask] = {packet.psn, true, job.value};
    expect_next(qp, 1);
    ++rx.reads_queued;
    push_job(qp, job);
}

void Engine::expect_next(SoftQp& qp, std::uint32_t packets) noexcept {
    qp.rx.expected_psn = psn_add(qp.rx.expected_psn, packets);
    qp.rx.nak_sent = false;
}

// ---- refusals ----

[[gnu::cold, gnu::noinline]] void Engine::refuse_rnr(SoftQp& qp) noexcept {
    ResponseJob job;
    job.kind = ResponseJob::Kind::rnr_nak;
    job.syndrome = qp.attr.min_rnr_timer;
    job.psn = qp.rx.expected_psn;
    ++qp.rx.rnr_naks;
    core_.rnr_naks_sent.fetch_add(1, std::memory_order_relaxed);
    qp.rx.nak_sent = true;  // packets after the refused one are dropped silently
    push_job(qp, job);
}

/// Sends a NAK as the responder's last answer. The QPs of both sides go to ERR.
[[gnu::cold, gnu::noinline]] void Engine::refuse(SoftQp& qp, Nak code) noexcept {
    ResponseJob job;
    job.kind = ResponseJob::Kind::nak;
    job.syndrome = static_cast<std::uint8_t>(code);
    job.psn = qp.rx.expected_psn;
    push_job(qp, job);
    enter_error(qp, true);
}

/// Refuses a write that its key does not permit. If the write would have taken a receive, this receive fails with a
/// local access error. So the responder's owner learns of the refusal (IBTA 11.6.2).
[[gnu::cold, gnu::noinline]] void Engine::refuse_write(SoftQp& qp, bool takes_receive) noexcept {
    if (!takes_receive || !take_receive(qp))
        return refuse_with_event(qp, Nak::remote_access);
    fail_recv(qp, IBV_WC_LOC_ACCESS_ERR);
    refuse(qp, Nak::remote_access);
}

/// Refuses a request and raises an event, which tells the responder's owner of an error that fails no receive (IBTA
/// 9.9.3, 11.6.3.2).
[[gnu::cold, gnu::noinline]] void Engine::refuse_with_event(SoftQp& qp, Nak code) noexcept {
    core_.events.raise(code == Nak::remote_access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR, &qp);
    refuse(qp, code);
}

// ---- receives and their completions ----

/// Takes a receive for the message that begins. qp.receive() returns this receive until complete_recv(). Returns false
/// if there is no receive.
bool Engine::take_receive(SoftQp& qp) noexcept {
    return qp.shared == nullptr ? qp.rq.done != qp.rq.posted : take_shared_receive(qp);
}

/// Takes the oldest receive out of the SRQ, and copies it. A copy is needed because receives of an SRQ complete in any
/// order: the slot may be used for another receive before this one completes.
bool Engine::take_shared_receive(SoftQp& qp) noexcept {
    SoftSrq& srq = *qp.shared;
    if (qp.receive_taken)
        return true;  // the receive of a message that did not arrive completely, as can happen on UC
    if (srq.left() == 0)
        return false;
    qp.taken = srq.rq.at(srq.rq.done);
    std::copy_n(srq.rq.sges(srq.rq.done), qp.taken.num_sge, qp.taken_sges.begin());
    qp.receive_taken = true;
    ++srq.rq.done;
    check_limit(srq);
    return true;
}

void Engine::check_limit(SoftSrq& srq) noexcept {
    if (srq.left() >= srq.limit)
        return;
    srq.limit = 0;  // the event is raised once; then the limit must be armed again (IBTA 10.2.9)
    core_.events.raise(IBV_EVENT_SRQ_LIMIT_REACHED, &srq);
}

void Engine::complete_recv(SoftQp& qp, const ibv_wc& wc) noexcept {
    ibv_wc full = wc;
    full.wr_id = qp.receive().wr_id;
    full.qp_num = qp.qp_num;
    if (qp.shared == nullptr)
        ++qp.rq.done;
    qp.receive_taken = false;
    push_cqe(qp.recv_queue_cq(), qp, full, qp.rq.done, true);
}

[[gnu::cold, gnu::noinline]] void Engine::fail_recv(SoftQp& qp, ibv_wc_status status) noexcept {
    ibv_wc wc{};
    wc.status = status;
    complete_recv(qp, wc);
}

/// Lets a small message wait in its CQE, like a provider whose NIC writes small messages into CQEs. The SGE is checked
/// now; the CPU that polls copies the message. Returns false if the message cannot wait, or the SGE is not allowed.
[[gnu::cold, gnu::noinline]] bool Engine::hold_payload(SoftQp& qp, const RecvWqe& wqe, const Packet& packet) noexcept {
    const bool whole = (packet.flags & kFirst) != 0 && (packet.flags & kLast) != 0;
    if (!whole || packet.payload_size == 0 || packet.payload_size > SoftProfile::kPayloadInCqe || wqe.num_sge == 0)
        return false;
    const ibv_sge& sge = qp.receive_sges().front();
    if (sge.length < packet.payload_size)
        return false;
    if (core_.memory.find(sge.lkey, qp.receive_pd(), sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE) == nullptr)
        return false;
    held_.to = sge.addr;
    held_.size = packet.payload_size;
    std::memcpy(held_.bytes, packet.payload(), packet.payload_size);
    return true;
}

// ---- answers ----

void Engine::push_job(SoftQp& qp, const ResponseJob& job) noexcept {
    qp.rx.jobs[qp.rx.jobs_tail++ & qp.rx.jobs_mask] = job;
    rx_active_.push_back(qp);
}

/// Queues an acknowledgement. Acknowledgements are cumulative, so if the newest job is an acknowledgement, it only gets
/// the later PSN.
void Engine::push_ack(SoftQp& qp, std::uint32_t psn) noexcept {
    Responder& rx = qp.rx;
    if (!rx.idle()) {
        ResponseJob& newest = rx.jobs[(rx.jobs_tail - 1) & rx.jobs_mask];
        if (newest.kind == ResponseJob::Kind::ack) {
            newest.psn = psn;
            return;
        }
    }
    ResponseJob job;
    job.psn = psn;
    push_job(qp, job);
}

std::uint32_t Engine::answer(SoftQp& qp, bool& more) noexcept {
    Responder& rx = qp.rx;
    if (!path_open(qp)) {
        rx.jobs_head = rx.jobs_tail;
        rx.reads_queued = 0;
        return 0;
    }
    Link& link = qp.peer->responses;
    std::uint32_t sent = 0;
    for (; !rx.idle() && sent < kPacketsPerTurnMax; ++sent) {
        ResponseJob& job = rx.jobs[rx.jobs_head & rx.jobs_mask];
        bool finished = true;
        if (job.kind == ResponseJob::Kind::read) {
            if (!answer_read(qp, job, finished))
                break;
        } else {
            const bool atomic = job.kind == ResponseJob::Kind::atomic;
            Packet* packet = link.prepare(atomic ? sizeof(job.value) : 0);
            if (packet == nullptr)
                break;
            switch (job.kind) {
                case ResponseJob::Kind::ack: packet->kind = PacketKind::ack; break;
                case ResponseJob::Kind::rnr_nak: packet->kind = PacketKind::rnr_nak; break;
                case ResponseJob::Kind::nak: packet->kind = PacketKind::nak; break;
                default:
                    packet->kind = PacketKind::atomic_response;
                    std::memcpy(packet->payload(), &job.value, sizeof(job.value));
                    rx.reads_queued -= !job.again;
                    break;
            }
            packet->dest_qpn = qp.dest_qpn;
            packet->src_qpn = qp.qp_num;
            packet->psn = job.psn;
            packet->syndrome = job.syndrome;
            link.push(*packet);
        }
        if (finished)
            ++rx.jobs_head;
    }
    if (sent != 0)
        qp.peer->publish(link);
    more = !rx.idle();
    return sent;
}

/// Sends one packet of a read's answer. Returns false if the link is full.
bool Engine::answer_read(SoftQp& qp, ResponseJob& job, bool& finished) noexcept {
    const std::uint32_t size = std::min(qp.mtu, job.length);
    const RemoteMemory memory =
        size == 0 ? RemoteMemory() : core_.memory.find_remote(job.rkey, qp, job.va, job.length, IBV_ACCESS_REMOTE_READ);
    const std::byte* host = memory.host();
    if (size != 0 && host == nullptr) [[unlikely]] {
        // The region was deregistered, or the window unbound, during the read. The answers that are queued behind this
        // read are dropped.
        const std::uint32_t psn = job.psn;
        qp.rx.jobs_head = qp.rx.jobs_tail;
        qp.rx.reads_queued = 0;
        core_.events.raise(IBV_EVENT_QP_ACCESS_ERR, &qp);
        refuse(qp, Nak::remote_access);
        qp.rx.jobs[qp.rx.jobs_head & qp.rx.jobs_mask].psn = psn;
        finished = false;
        return true;
    }
    Packet* packet = qp.peer->responses.prepare(size);
    if (packet == nullptr)
        return false;
    packet->kind = PacketKind::read_response;
    packet->dest_qpn = qp.dest_qpn;
    packet->src_qpn = qp.qp_num;
    packet->psn = job.psn;
    copy_from_memory(packet->payload(), host, size);
    qp.peer->responses.push(*packet);
    job.psn = psn_add(job.psn, 1);
    job.va += size;
    job.length -= size;
    finished = job.length == 0;
    if (finished)
        qp.rx.reads_queued -= !job.again;
    return true;
}

}  // namespace pollcore::soft
