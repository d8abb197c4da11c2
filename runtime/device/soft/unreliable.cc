// Unreliable connections and datagrams. They have no responses, so a send completes when its last packet has left. The
// receiving side silently drops packets that it cannot use (IBTA 9.8.2, 9.8.3), except if its own receive is at fault.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "device/soft/engine.hpp"
#include "device/soft/scatter_gather.hpp"

namespace pollcore::soft {

namespace {

constexpr std::uint32_t kGrh = sizeof(ibv_grh);
static_assert(kGrh == 40);

/// The global route header (GRH, IBTA 8.3) in front of each datagram. The receiver finds it at the beginning of its
/// buffer.
[[nodiscard]] ibv_grh grh_of(const Destination& to, const ibv_gid& from, std::uint32_t payload) noexcept {
    constexpr std::uint32_t kIpVersion = 6;
    constexpr std::uint32_t kHeadersAndCrc = 12 + 8 + 4;  // BTH, DETH, ICRC
    constexpr std::uint8_t kIbaTransport = 0x1b;
    ibv_grh grh{};
    grh.version_tclass_flow =
        htonl(kIpVersion << 28 | std::uint32_t{to.traffic_class} << 20 | (to.flow_label & 0xfffff));
    grh.paylen = htons(static_cast<std::uint16_t>(((payload + 3) & ~3u) + kHeadersAndCrc));
    grh.next_hdr = kIbaTransport;
    grh.hop_limit = to.hop_limit;
    grh.sgid = from;
    grh.dgid = to.gid;
    return grh;
}

}  // namespace

// ---- sending ----

void Engine::complete_sent(SoftQp& qp) noexcept {
    qp.tx.una_psn = qp.tx.next_psn;
    complete_send(qp, IBV_WC_SUCCESS);
}

/// Sends one packet over the link that was made together with the address handle. Without a link the packet is lost, as
/// on a network.
Engine::Sent Engine::send_datagram(SoftQp& qp, SendWqe& wqe) noexcept {
    Requester& tx = qp.tx;
    const Destination& to = qp.destination(tx.cursor);
    const std::uint32_t engine = to.qpn >> kQpIndexBits;
    LinkPair* link = engine < outgoing_.size() ? outgoing_[engine].get() : nullptr;
    // Both loads are relaxed: see path_open().
    if (link != nullptr && !link->receiver_gone.load(std::memory_order_relaxed) &&
        core_.port_up.load(std::memory_order_relaxed)) {
        Packet* packet = link->requests.prepare(kGrh + wqe.length);
        if (packet == nullptr)
            return Sent::link_full;
        packet->kind = PacketKind::datagram;
        packet->flags =
            static_cast<std::uint8_t>(kFirst | kLast | (wqe.opcode == IBV_WR_SEND_WITH_IMM ? kImmediate : 0) |
                                      ((wqe.flags & IBV_SEND_SOLICITED) != 0 ? kSolicitedEvent : 0));
        packet->service_level = to.service_level;
        packet->dest_qpn = to.qpn;
        packet->src_qpn = qp.qp_num;
        packet->psn = wqe.first_psn;
        packet->imm = wqe.imm;
        packet->rkey = to.qkey;
        const ibv_grh grh = grh_of(to, core_.gid, wqe.length);
        std::memcpy(packet->payload(), &grh, kGrh);
        if ((wqe.flags & IBV_SEND_INLINE) != 0) {
            std::memcpy(packet->payload() + kGrh, qp.inline_data(tx.cursor), wqe.length);
        } else if (!gather(core_.memory, qp.pd, {qp.sq.sges(tx.cursor), wqe.num_sge}, 0, packet->payload() + kGrh,
                           wqe.length)) [[unlikely]] {
            stop_at_cursor(qp, IBV_WC_LOC_PROT_ERR);
            return Sent::failed;
        }
        link->requests.push(*packet);
        link->publish(link->requests);
    }
    ++tx.cursor;
    complete_sent(qp);
    return Sent::yes;
}

// ---- receiving ----

/// If a packet of a message is missing, the whole message is lost: packets after the gap are dropped until the first
/// packet of another message comes. A receive that a lost message had begun to fill serves the next message.
void Engine::on_unacknowledged(SoftQp& qp, const Packet& packet) noexcept {
    if (qp.current != IBV_QPS_RTR && qp.current != IBV_QPS_RTS && qp.current != IBV_QPS_SQE)
        return;
    if (packet.kind == PacketKind::datagram)
        return on_datagram(qp, packet);
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

/// Returns false if the whole message must be dropped.
bool Engine::begin_unacknowledged(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    rx.offset = 0;
    if (packet.kind == PacketKind::send) {
        rx.message = Responder::Message::send;
        return take_receive(qp);
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
    if (packet.kind != PacketKind::send) [[unlikely]] {
        rx.message = Responder::Message::none;
        return;
    }
    if (std::uint64_t{rx.offset} + packet.payload_size > qp.receive().length) [[unlikely]]
        return fail_unacknowledged(qp, IBV_WC_LOC_LEN_ERR);
    if (!scatter(core_.memory, qp.receive_pd(), qp.receive_sges(), rx.offset, packet.payload(), packet.payload_size))
        [[unlikely]]
        return fail_unacknowledged(qp, IBV_WC_LOC_PROT_ERR);
    rx.offset += packet.payload_size;
    if (!last)
        return;
    rx.message = Responder::Message::none;
    complete_recv(qp, received(qp, packet, IBV_WC_RECV));
}

/// If a receive cannot hold its message, that is the mistake of the receive's owner, so the QP goes to ERR. A mistake
/// of the peer or the network has no such effect (IBTA 11.6.2).
[[gnu::cold, gnu::noinline]] void Engine::fail_unacknowledged(SoftQp& qp, ibv_wc_status status) noexcept {
    fail_recv(qp, status);
    enter_error(qp, false);
}

void Engine::on_datagram(SoftQp& qp, const Packet& packet) noexcept {
    ibv_grh grh;
    std::memcpy(&grh, packet.payload(), kGrh);
    if (std::memcmp(&grh.dgid, &core_.gid, sizeof(grh.dgid)) != 0 || packet.rkey != qp.attr.qkey || !take_receive(qp)) {
        return;
    }
    if (packet.payload_size > qp.receive().length) [[unlikely]]
        return fail_unacknowledged(qp, IBV_WC_LOC_LEN_ERR);
    if (!scatter(core_.memory, qp.receive_pd(), qp.receive_sges(), 0, packet.payload(), packet.payload_size))
        [[unlikely]]
        return fail_unacknowledged(qp, IBV_WC_LOC_PROT_ERR);
    ibv_wc wc = received(qp, packet, IBV_WC_RECV);
    wc.byte_len = packet.payload_size;
    wc.wc_flags |= IBV_WC_GRH;
    wc.src_qp = packet.src_qpn;
    wc.sl = packet.service_level;
    complete_recv(qp, wc);
}

void Engine::on_unacknowledged_write(SoftQp& qp, const Packet& packet) noexcept {
    Responder& rx = qp.rx;
    const bool last = (packet.flags & kLast) != 0;
    const RemoteMemory memory =
        rx.remaining != 0 ? core_.memory.find_remote(rx.rkey, qp, rx.va, rx.remaining, IBV_ACCESS_REMOTE_WRITE)
                          : RemoteMemory();
    const bool takes_receive = (packet.flags & kImmediate) != 0;
    if (packet.kind != PacketKind::write || packet.payload_size > rx.remaining ||
        (last && packet.payload_size != rx.remaining) || (rx.remaining != 0 && memory.host() == nullptr) ||
        (takes_receive && !take_receive(qp))) [[unlikely]] {
        rx.message = Responder::Message::none;
        return;
    }
    copy_to_memory(memory.host(), packet.payload(), packet.payload_size);
    rx.offset += packet.payload_size;
    rx.va += packet.payload_size;
    rx.remaining -= packet.payload_size;
    if (last)
        rx.message = Responder::Message::none;
    if (!takes_receive)
        return;
    complete_recv(qp, received(qp, packet, IBV_WC_RECV_RDMA_WITH_IMM));
}

}  // namespace pollcore::soft
