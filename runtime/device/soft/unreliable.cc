// Unreliable connections: nothing is said back. A send completes when its last packet has left; what the receiving
// side cannot use it drops in silence (IBTA 9.8.2).
#include <algorithm>
#include <span>

#include "device/soft/engine.hpp"
#include "device/soft/scatter_gather.hpp"

namespace pollcore::soft {

// ---- sending ----

void Engine::complete_sent(SoftQp& qp) noexcept {
    qp.tx.una_psn = qp.tx.next_psn;
    complete_send(qp, IBV_WC_SUCCESS);
}

// ---- receiving ----

/// Packets of a message come one after the other or the message is lost: what follows a gap is dropped up to the
/// first packet of another one. A receive that a lost message had begun to fill serves the next.
void Engine::on_unacknowledged(SoftQp& qp, const Packet& packet) noexcept {
    if (qp.current != IBV_QPS_RTR && qp.current != IBV_QPS_RTS && qp.current != IBV_QPS_SQE)
        return;
    Responder& rx = qp.rx;
    if (qp.current == IBV_QPS_RTR && !rx.heard) [[unlikely]] {
        rx.heard = true;
        core_.events.raise(IBV_EVENT_COMM_EST, &qp);
    }
    const bool gap = packet.psn != rx.expected_psn;
    rx.expected_psn = psn_add(packet.psn, 1);
    if ((packet.flags & kFirst) != 0) {
        if (!begin_unacknowledged(qp, packet))
            rx.message = Responder::Message::none;
    } else if (gap) {
        rx.message = Responder::Message::none;
    }
    switch (rx.message) {
        case Responder::Message::none: return;
        case Responder::Message::send: return on_unacknowledged_send(qp, packet);
        case Responder::Message::write: return on_unacknowledged_write(qp, packet);
    }
}

/// False when the message is to be dropped as a whole.
bool Engine::begin_unacknowledged(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    rx.offset = 0;
    if (packet.kind == PacketKind::send) {
        rx.message = Responder::Message::send;
        return qp.rq.done != qp.rq.posted;
    }
    if (packet.kind != PacketKind::write || (qp.access & IBV_ACCESS_REMOTE_WRITE) == 0)
        return false;
    rx.message = Responder::Message::write;
    rx.va = packet.va;
    rx.rkey = packet.rkey;
    rx.remaining = packet.dma_length;
    return true;
}

void Engine::on_unacknowledged_send(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    const bool last = (packet.flags & kLast) != 0;
    const RecvWqe& wqe = qp.rq.at(qp.rq.done);
    const auto fail = [&](ibv_wc_status status) {
        fail_recv(qp, status);
        enter_error(qp, false);
    };
    if (packet.kind != PacketKind::send) [[unlikely]] {
        rx.message = Responder::Message::none;
        return;
    }
    // A receive that cannot take the message is its owner's mistake and ends in error, unlike what a peer or the
    // network does (IBTA 11.6.2).
    if (std::uint64_t{rx.offset} + packet.payload_size > wqe.length) [[unlikely]]
        return fail(IBV_WC_LOC_LEN_ERR);
    const std::span<const ibv_sge> sges(qp.rq.sges(qp.rq.done), wqe.num_sge);
    if (!scatter(core_.memory, qp.pd, sges, rx.offset, packet.payload(), packet.payload_size)) [[unlikely]]
        return fail(IBV_WC_LOC_PROT_ERR);
    rx.offset += packet.payload_size;
    if (!last)
        return;
    rx.message = Responder::Message::none;
    ibv_wc wc{};
    wc.opcode = IBV_WC_RECV;
    wc.byte_len = rx.offset;
    wc.src_qp = qp.dest_qpn;
    if ((packet.flags & kImmediate) != 0) {
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = packet.imm;
    }
    complete_recv(qp, wc);
}

void Engine::on_unacknowledged_write(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    const bool last = (packet.flags & kLast) != 0;
    std::byte* host = nullptr;
    if (rx.remaining != 0)
        host = core_.memory.find(rx.rkey, qp.pd, rx.va, rx.remaining, IBV_ACCESS_REMOTE_WRITE);
    const bool takes_receive = (packet.flags & kImmediate) != 0;
    if (packet.kind != PacketKind::write || packet.payload_size > rx.remaining ||
        (last && packet.payload_size != rx.remaining) || (rx.remaining != 0 && host == nullptr) ||
        (takes_receive && qp.rq.done == qp.rq.posted)) [[unlikely]] {
        rx.message = Responder::Message::none;
        return;
    }
    copy_to_memory(host, packet.payload(), packet.payload_size);
    rx.offset += packet.payload_size;
    rx.va += packet.payload_size;
    rx.remaining -= packet.payload_size;
    if (last)
        rx.message = Responder::Message::none;
    if (!takes_receive)
        return;
    ibv_wc wc{};
    wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    wc.byte_len = rx.offset;
    wc.src_qp = qp.dest_qpn;
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = packet.imm;
    complete_recv(qp, wc);
}

}  // namespace pollcore::soft
