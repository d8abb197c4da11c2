// The requester: turns posted sends into request packets, and responses into completions (IBTA 9.7.5, 9.9.2).
#include <algorithm>
#include <span>

#include "device/soft/engine.hpp"
#include "device/soft/scatter_gather.hpp"

namespace pollcore::soft {

namespace {

[[nodiscard]] bool is_atomic(const SendWqe& wqe) noexcept {
    return wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
/// Whether the WQE is a read or an atomic. Its answer contains data, and it counts against max_rd_atomic.
[[nodiscard]] bool is_read(const SendWqe& wqe) noexcept {
    return wqe.opcode == IBV_WR_RDMA_READ || is_atomic(wqe);
}

/// Whether the WQE is a bind or an invalidation, which sends no packet.
[[nodiscard]] bool is_local(const SendWqe& wqe) noexcept {
    return wqe.opcode == IBV_WR_LOCAL_INV || wqe.opcode == IBV_WR_BIND_MW;
}

[[nodiscard]] bool has_imm(const SendWqe& wqe) noexcept {
    return wqe.opcode == IBV_WR_SEND_WITH_IMM || wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
[[nodiscard]] bool is_write(const SendWqe& wqe) noexcept {
    return wqe.opcode == IBV_WR_RDMA_WRITE || wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

[[nodiscard]] ibv_wc_opcode completion_opcode(const SendWqe& wqe) noexcept {
    switch (wqe.opcode) {
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
        case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
        case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
        case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
        case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
        case IBV_WR_BIND_MW: return IBV_WC_BIND_MW;
        default: return IBV_WC_SEND;
    }
}

[[nodiscard]] PacketKind request_kind(const SendWqe& wqe) noexcept {
    switch (wqe.opcode) {
        case IBV_WR_RDMA_READ: return PacketKind::read_request;
        case IBV_WR_ATOMIC_CMP_AND_SWP: return PacketKind::compare_swap;
        case IBV_WR_ATOMIC_FETCH_AND_ADD: return PacketKind::fetch_add;
        default: return is_write(wqe) ? PacketKind::write : PacketKind::send;
    }
}

[[nodiscard]] std::span<const ibv_sge> sges_of(SoftQp& qp, std::uint32_t count) noexcept {
    return {qp.sq.sges(count), qp.sq.at(count).num_sge};
}

}  // namespace

// ---- sending ----

std::uint32_t Engine::transmit(SoftQp& qp, bool& more) noexcept {
    if (qp.current == IBV_QPS_ERR) [[unlikely]] {
        const std::uint32_t work = flush(qp);
        more = qp.sq.done != qp.sq.posted || qp.rq.done != flush_end(qp);
        return work;
    }
    if (qp.current == IBV_QPS_SQE) [[unlikely]] {
        const std::uint32_t work = flush_sends(qp, kFlushPerTurnMax);
        more = qp.sq.done != qp.sq.posted;
        return work;
    }
    Requester& tx = qp.tx;
    if (qp.current != IBV_QPS_RTS || tx.waiting_rnr || tx.local_error != IBV_WC_SUCCESS)
        return 0;
    std::uint32_t sent = 0;
    while (tx.cursor != qp.sq.posted) {
        if (sent == kPacketsPerTurnMax) {
            more = true;
            break;
        }
        SendWqe& wqe = qp.sq.at(tx.cursor);
        if (tx.cursor_packet == 0 && !may_start(qp, wqe))
            break;  // the QP is activated again when its earlier requests make progress
        if (is_local(wqe)) [[unlikely]] {
            pass_local(qp);
            ++sent;
            continue;
        }
        const Sent result = send_packet(qp, wqe);
        if (result == Sent::yes) [[likely]] {
            ++sent;
            continue;
        }
        more = result == Sent::link_full;
        break;
    }
    if (sent != 0) {
        if (qp.peer != nullptr)
            qp.peer->publish(qp.peer->requests);
        if (qp.current == IBV_QPS_RTS) [[likely]]
            arm_ack_timer(qp);  // not in RTS: a request failed after others had been sent
    }
    if (qp.current != IBV_QPS_RTS)
        more = true;
    return sent;
}

bool Engine::may_start(SoftQp& qp, SendWqe& wqe) noexcept {
    Requester& tx = qp.tx;
    if ((wqe.flags & IBV_SEND_FENCE) != 0 && tx.rd_in_flight != 0)
        return false;
    if (is_read(wqe) && tx.rd_in_flight >= qp.max_rd_atomic && qp.max_rd_atomic != 0)
        return false;
    if (tx.cursor != tx.assigned)
        return true;  // the WQE was started before, and is sent again

    const ibv_wc_status status = check_local(qp, wqe);
    if (status != IBV_WC_SUCCESS) [[unlikely]] {
        stop_at_cursor(qp, status);
        return false;
    }
    if (is_local(wqe)) [[unlikely]]
        return start_local(qp, wqe);
    const std::uint32_t packets = is_atomic(wqe) ? 1 : packets_of(wqe.length, qp.mtu);
    const std::uint32_t outstanding = (tx.next_psn - tx.una_psn) & kPsnMask;
    if (outstanding + packets > static_cast<std::uint32_t>(kPsnWindow))
        return false;
    wqe.first_psn = tx.next_psn;
    wqe.last_psn = psn_add(tx.next_psn, packets - 1);
    tx.next_psn = psn_add(tx.next_psn, packets);
    ++tx.assigned;
    return true;
}

/// Carries out a bind or an invalidation. This happens only once, because a second pass finds the WQE assigned. The WQE
/// has no PSN of its own.
[[gnu::cold, gnu::noinline]] bool Engine::start_local(SoftQp& qp, SendWqe& wqe) noexcept {
    Requester& tx = qp.tx;
    bool done = false;
    if (wqe.opcode == IBV_WR_BIND_MW) {
        done = core_.memory.bind({.key = wqe.imm,
                                  .new_key = wqe.rkey,
                                  .region_key = static_cast<std::uint32_t>(wqe.swap),
                                  .address = wqe.remote_addr,
                                  .length = wqe.compare_add,
                                  .access = static_cast<int>(wqe.swap >> 32)},
                                 qp);
    } else {
        done = core_.memory.invalidate(wqe.rkey, qp);
    }
    if (!done) {
        stop_at_cursor(qp, IBV_WC_MW_BIND_ERR);
        return false;
    }
    wqe.first_psn = tx.next_psn;
    wqe.last_psn = psn_add(tx.next_psn, kPsnMask);  // one before first_psn, so that the range of PSNs is empty
    ++tx.assigned;
    ++tx.local_done;
    return true;
}

/// Moves the cursor past a WQE that sends no packet.
[[gnu::cold, gnu::noinline]] void Engine::pass_local(SoftQp& qp) noexcept {
    ++qp.tx.cursor;
    complete_local(qp);
}

/// Completes WQEs that send no packet, as long as the oldest WQE is of this kind.
[[gnu::cold, gnu::noinline]] void Engine::complete_local(SoftQp& qp) noexcept {
    while (qp.sq.done != qp.tx.assigned && is_local(qp.sq.at(qp.sq.done)))
        complete_send(qp, IBV_WC_SUCCESS);
}

/// Checks a WQE for errors that the requester itself detects (IBTA 9.9.2.1).
ibv_wc_status Engine::check_local(SoftQp& qp, const SendWqe& wqe) noexcept {
    if (wqe.fault != 0) [[unlikely]]
        return static_cast<ibv_wc_status>(wqe.fault);
    if (wqe.length > (qp.qp_type == IBV_QPT_UD ? qp.mtu : kMessageMax))
        return IBV_WC_LOC_LEN_ERR;
    if (is_atomic(wqe) && wqe.length < sizeof(std::uint64_t))
        return IBV_WC_LOC_LEN_ERR;
    if (is_read(wqe) && qp.max_rd_atomic == 0)
        return IBV_WC_LOC_QP_OP_ERR;
    if ((wqe.flags & IBV_SEND_INLINE) != 0)
        return IBV_WC_SUCCESS;
    const int access = is_read(wqe) ? IBV_ACCESS_LOCAL_WRITE : 0;
    return allowed(core_.memory, qp.pd, sges_of(qp, qp.tx.cursor), access) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
}

/// Stops at the WQE at the cursor, which fails after all earlier WQEs have completed.
[[gnu::cold, gnu::noinline]] void Engine::stop_at_cursor(SoftQp& qp, ibv_wc_status status) noexcept {
    qp.tx.local_error = status;
    if (qp.sq.done == qp.tx.cursor)
        fail_send(qp, status);
}

Engine::Sent Engine::send_packet(SoftQp& qp, SendWqe& wqe) noexcept {
    if (qp.qp_type == IBV_QPT_UD) [[unlikely]]
        return send_datagram(qp, wqe);
    Requester& tx = qp.tx;
    const bool read = is_read(wqe);
    const std::uint32_t offset = tx.cursor_packet * qp.mtu;
    const std::uint32_t psn = psn_add(wqe.first_psn, tx.cursor_packet);
    const std::uint32_t size = read ? 0 : std::min(qp.mtu, wqe.length - offset);
    const bool last = read || psn == wqe.last_psn;

    if (path_open(qp)) [[likely]] {
        Packet* packet = qp.peer->requests.prepare(size);
        if (packet == nullptr)
            return Sent::link_full;
        packet->kind = request_kind(wqe);
        packet->flags = static_cast<std::uint8_t>((tx.cursor_packet == 0 || read ? kFirst : 0) | (last ? kLast : 0) |
                                                  (last && has_imm(wqe) ? kImmediate : 0) |
                                                  (last && wqe.opcode == IBV_WR_SEND_WITH_INV ? kInvalidate : 0) |
                                                  ((wqe.flags & IBV_SEND_SOLICITED) != 0 ? kSolicitedEvent : 0));
        packet->dest_qpn = qp.dest_qpn;
        packet->src_qpn = qp.qp_num;
        packet->psn = psn;
        packet->imm = wqe.imm;
        packet->rkey = wqe.rkey;
        // A read that was answered in part asks again only for the remaining data.
        packet->va = wqe.opcode == IBV_WR_RDMA_READ ? wqe.remote_addr + offset : wqe.remote_addr;
        packet->dma_length = wqe.opcode == IBV_WR_RDMA_READ ? wqe.length - offset : wqe.length;
        packet->compare_add = wqe.compare_add;
        packet->swap = wqe.swap;
        if (size != 0) {
            bool copied = true;
            if ((wqe.flags & IBV_SEND_INLINE) != 0) {
                std::memcpy(packet->payload(), qp.inline_data(tx.cursor) + offset, size);
            } else {
                copied = gather(core_.memory, qp.pd, sges_of(qp, tx.cursor), offset, packet->payload(), size);
            }
            if (!copied) [[unlikely]] {
                stop_at_cursor(qp, IBV_WC_LOC_PROT_ERR);
                return Sent::failed;
            }
        }
        qp.peer->requests.push(*packet);
    }

    if (read) {
        wqe.read_in_flight = true;
        ++tx.rd_in_flight;
    }
    const std::uint32_t behind = psn_add(read ? wqe.last_psn : psn, 1);
    if (psn_diff(behind, tx.sent_psn) > 0)
        tx.sent_psn = behind;
    if (last) {
        ++tx.cursor;
        tx.cursor_packet = 0;
        if (qp.qp_type != IBV_QPT_RC) [[unlikely]]
            complete_sent(qp);
    } else {
        ++tx.cursor_packet;
    }
    return Sent::yes;
}

void Engine::arm_ack_timer(SoftQp& qp) noexcept {
    if (qp.tx.ack_timeout_ns == 0)
        return;
    timers_.push_back(qp);
    if (qp.tx.deadline_ns == 0)
        timers_unset_ = true;
}

// ---- responses ----

void Engine::on_response(SoftQp& qp, const Packet& packet) noexcept {
    if (qp.current != IBV_QPS_RTS)
        return;
    switch (packet.kind) {
        case PacketKind::ack: {
            const std::uint32_t before = qp.tx.una_psn;
            if (acknowledge_before(qp, psn_add(packet.psn, 1)) && qp.tx.una_psn != before)
                after_progress(qp);
            break;
        }
        case PacketKind::read_response:
        case PacketKind::atomic_response: on_payload(qp, packet); break;
        case PacketKind::nak: on_nak(qp, packet); break;
        case PacketKind::rnr_nak: on_rnr_nak(qp, packet); break;
        default: break;  // the other kinds are not responses
    }
}

/// Completes the WQEs whose packets are all before `psn`. Returns false if the response is stale, or if it shows that a
/// read's answer was lost. A read whose answer was lost is requested again (implied NAK, IBTA 9.7.5.2).
bool Engine::acknowledge_before(SoftQp& qp, std::uint32_t psn) noexcept {
    Requester& tx = qp.tx;
    if (psn_diff(psn, tx.una_psn) < 0 || psn_diff(psn, tx.sent_psn) > 0)
        return false;
    if (psn == tx.una_psn)
        return true;
    while (qp.sq.done != tx.assigned) {
        const SendWqe& wqe = qp.sq.at(qp.sq.done);
        const bool whole = psn_diff(wqe.last_psn, psn) < 0;
        if (is_read(wqe) && (whole || psn_diff(psn, wqe.first_psn) > 0)) {
            if (psn_diff(wqe.first_psn, tx.una_psn) > 0)
                tx.una_psn = wqe.first_psn;
            after_progress(qp);
            if (qp.current == IBV_QPS_RTS)
                retry(qp);
            return false;
        }
        if (!whole)
            break;
        complete_send(qp, IBV_WC_SUCCESS);
    }
    tx.una_psn = psn;
    return true;
}

/// Called after una_psn has moved. Resets the retry counters, and continues requests that waited for this progress.
void Engine::after_progress(SoftQp& qp) noexcept {
    Requester& tx = qp.tx;
    tx.retries_left = tx.retry_count;
    tx.rnr_retries_left = tx.rnr_retry;
    tx.waits_since_ns = 0;
    if (tx.local_done != 0) [[unlikely]]
        complete_local(qp);
    if (!tx.waiting_rnr) {
        tx.deadline_ns = 0;
        if (qp.sq.done != tx.assigned)
            timers_unset_ = true;
    }
    // Late responses may complete WQEs ahead of a cursor that went back.
    if (static_cast<std::int32_t>(tx.cursor - qp.sq.done) < 0) {
        tx.cursor = qp.sq.done;
        tx.cursor_packet = 0;
    }
    if (tx.cursor == qp.sq.done && qp.sq.done != tx.assigned) {
        const SendWqe& wqe = qp.sq.at(qp.sq.done);
        const std::int32_t answered = psn_diff(tx.una_psn, wqe.first_psn);
        if (answered > 0)
            tx.cursor_packet = std::max(tx.cursor_packet, static_cast<std::uint32_t>(answered));
    }
    if (tx.local_error != IBV_WC_SUCCESS && qp.sq.done == tx.cursor) [[unlikely]] {
        fail_send(qp, tx.local_error);
        return;
    }
    if (tx.cursor != qp.sq.posted)
        activate(qp);
}

void Engine::on_payload(SoftQp& qp, const Packet& packet) noexcept {
    Requester& tx = qp.tx;
    if (!acknowledge_before(qp, packet.psn))
        return;
    if (packet.psn != tx.una_psn || qp.sq.done == tx.assigned)
        return;
    SendWqe& wqe = qp.sq.at(qp.sq.done);
    if (!is_read(wqe))
        return;
    const auto offset = static_cast<std::uint32_t>(psn_diff(packet.psn, wqe.first_psn)) * qp.mtu;
    const std::uint32_t size =
        is_atomic(wqe) ? std::uint32_t{sizeof(std::uint64_t)} : std::min(qp.mtu, wqe.length - offset);
    if (packet.payload_size != size) [[unlikely]]
        return fail_send(qp, IBV_WC_BAD_RESP_ERR);
    if (!scatter(core_.memory, qp.pd, sges_of(qp, qp.sq.done), offset, packet.payload(), size)) [[unlikely]] {
        return fail_send(qp, IBV_WC_LOC_PROT_ERR);
    }
    tx.una_psn = psn_add(packet.psn, 1);
    if (packet.psn == wqe.last_psn)
        complete_send(qp, IBV_WC_SUCCESS);
    after_progress(qp);
}

[[gnu::cold, gnu::noinline]] void Engine::on_nak(SoftQp& qp, const Packet& packet) noexcept {
    const std::uint32_t before = qp.tx.una_psn;
    if (!acknowledge_before(qp, packet.psn))
        return;
    if (qp.tx.una_psn != before)
        after_progress(qp);
    if (qp.current != IBV_QPS_RTS || qp.sq.done == qp.tx.assigned)
        return;
    switch (static_cast<Nak>(packet.syndrome)) {
        case Nak::sequence: return retry(qp);
        case Nak::invalid_request: return fail_send(qp, IBV_WC_REM_INV_REQ_ERR);
        case Nak::remote_access: return fail_send(qp, IBV_WC_REM_ACCESS_ERR);
        case Nak::remote_operational: return fail_send(qp, IBV_WC_REM_OP_ERR);
    }
}

[[gnu::cold, gnu::noinline]] void Engine::on_rnr_nak(SoftQp& qp, const Packet& packet) noexcept {
    Requester& tx = qp.tx;
    const std::uint32_t before = tx.una_psn;
    if (!acknowledge_before(qp, packet.psn))
        return;
    if (tx.una_psn != before)
        after_progress(qp);
    if (qp.current != IBV_QPS_RTS || qp.sq.done == tx.assigned)
        return;
    ++tx.rnr_naks;
    core_.rnr_naks_received.fetch_add(1, std::memory_order_relaxed);
    if (tx.rnr_retry != kRnrForever) {
        if (tx.rnr_retries_left == 0)
            return fail_send(qp, IBV_WC_RNR_RETRY_EXC_ERR);
        --tx.rnr_retries_left;
    }
    go_back(qp);
    tx_active_.remove(qp);
    tx.waiting_rnr = true;
    tx.deadline_ns = now_ns() + rnr_timer_ns(packet.syndrome);
    next_deadline_ns_ = std::min(next_deadline_ns_, tx.deadline_ns);
    timers_.push_back(qp);
}

/// Moves the cursor back to the oldest packet that has no answer.
void Engine::go_back(SoftQp& qp) noexcept {
    Requester& tx = qp.tx;
    for (std::uint32_t count = qp.sq.done; count != tx.assigned; ++count)
        qp.sq.at(count).read_in_flight = false;
    tx.rd_in_flight = 0;
    tx.local_error = IBV_WC_SUCCESS;  // the error is found again when the cursor comes back to the WQE
    tx.cursor = qp.sq.done;
    tx.cursor_packet = 0;
    if (qp.sq.done != tx.assigned) {
        const std::int32_t answered = psn_diff(tx.una_psn, qp.sq.at(qp.sq.done).first_psn);
        if (answered > 0)
            tx.cursor_packet = static_cast<std::uint32_t>(answered);
    }
    activate(qp);
}

[[gnu::cold, gnu::noinline]] void Engine::retry(SoftQp& qp) noexcept {
    if (qp.tx.retries_left == 0)
        return fail_send(qp, IBV_WC_RETRY_EXC_ERR);
    --qp.tx.retries_left;
    go_back(qp);
}

// ---- completions ----

void Engine::complete_send(SoftQp& qp, ibv_wc_status status) noexcept {
    SendWqe& wqe = qp.sq.at(qp.sq.done);
    if (wqe.read_in_flight) {
        wqe.read_in_flight = false;
        --qp.tx.rd_in_flight;
    }
    if (qp.tx.local_done != 0 && is_local(wqe)) [[unlikely]]
        --qp.tx.local_done;
    ++qp.sq.done;
    if (status == IBV_WC_SUCCESS && !qp.signal_all && (wqe.flags & IBV_SEND_SIGNALED) == 0)
        return;
    ibv_wc wc{};
    wc.wr_id = wqe.wr_id;
    wc.status = status;
    wc.qp_num = qp.qp_num;
    if (status == IBV_WC_SUCCESS) {
        wc.opcode = completion_opcode(wqe);
        if (is_read(wqe))
            wc.byte_len = is_atomic(wqe) ? std::uint32_t{sizeof(std::uint64_t)} : wqe.length;
    }
    push_cqe(qp.send_queue_cq(), qp, wc, qp.sq.done, false);
}

[[gnu::cold, gnu::noinline]] void Engine::fail_send(SoftQp& qp, ibv_wc_status status) noexcept {
    complete_send(qp, status);
    if (qp.qp_type == IBV_QPT_RC) {
        enter_error(qp, false);
    } else {
        enter_send_error(qp);
    }
}

}  // namespace pollcore::soft
