// Flow control of queue pairs: the memory to which a peer writes its grants, and the end of a queue pair whose peer
// breaks the rules.
#include <algorithm>
#include <limits>
#include <new>
#include <string_view>

#include <fmt/format.h>

#include "base/log.hpp"
#include "control/runtime_state.hpp"

namespace pollcore {
namespace {

std::string_view text_of(FlowFault fault) {
    switch (fault) {
        case FlowFault::none: return "nothing is wrong";
        case FlowFault::not_terms: return "what it wrote as its terms is something else";
        case FlowFault::other_version: return "its terms are of a version that this pollcore does not know";
        case FlowFault::other_features: return "its terms ask for features that this pollcore does not know";
        case FlowFault::no_depth: return "its terms speak of no receives, or of more than there can be";
        case FlowFault::no_ring: return "its terms speak of a write ring that cannot be";
        case FlowFault::too_many_messages: return "it sent more messages than it was granted";
        case FlowFault::bad_announcement:
            return "it announced a message that is too long, or while another was being read";
        case FlowFault::post_refused:
            return "the provider refused a request between others that must not go without it";
        case FlowFault::signal_refused:
            return "the provider refused the last request of a burst, with which those before it were to complete "
                   "(coalesce_signals)";
        case FlowFault::completion_lost: return "the provider lost the completion of an announced message";
        case FlowFault::too_many_grants: return "it grants more receives than its terms allow";
    }
    return "it wrote nonsense";
}

}  // namespace

// Each queue pair has a memory region of its own, so that a peer can only write to the control block of its own
// connection.
void RuntimeState::add_flow_control(const QpSpec& spec, QpSlot& qp, std::uint32_t send_depth) {
    if (spec.type != QpType::rc) {
        throw Error(EINVAL, "flow control needs a reliable connection (QpType::rc)");
    }
    const FlowKind& kind = flow_kind(spec.flow);
    if (kind.needs_receives && !spec.srq.valid() && spec.recv_depth == 0) {
        throw Error(EINVAL,
                    fmt::format("flow control by {} needs receives: recv_depth = 0", flow_control_text(spec.flow)));
    }
    Device& device = *devices_[qp.device]->device;
    ibv_pd* const pd = pds_.at(qp.pd).pd.get();
    const std::uint32_t entries = kind.entry_bytes != 0 ? std::bit_ceil(qp.send_entries) : 0;
    const std::size_t entries_bytes = std::size_t{entries} * kind.entry_bytes;
    ControlMemory& memory = qp.control_memory;
    memory = ControlMemory(
        platform->allocate(sizeof(ControlBlock) + entries_bytes, device.numa_node(), "flow control of a queue pair"));
    auto* block = new (memory.data()) ControlBlock;
    memory.register_block(device, pd, 0, sizeof(ControlBlock), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    // If the application posts the receives itself, they may have any length.
    const PoolSlot* pool = qp.srq != nullptr ? qp.srq->pool.pool : qp.pool.pool;
    const std::uint32_t slots =
        std::max(slots_for_sges(std::max(spec.sges_max, 1u)), slots_for_inline(spec.inline_max));
    FlowParts parts{
        .block = block,
        .block_lkey = memory.block().lkey,
        .waiting = WaitingRequests(std::max(send_depth, 1u), slots),
        .receives = spec.recv_depth,
        .message_max = pool != nullptr ? pool->end->message_max() : std::numeric_limits<std::uint32_t>::max(),
        .grants = qp.srq != nullptr ? qp.srq->grants.get() : nullptr,
        .rendezvous = qp.rendezvous.pool != nullptr ? qp.rendezvous.pool->buffers : nullptr,
        .rendezvous_buffers = qp.rendezvous.buffers,
        .ring = qp.pool.pool != nullptr ? qp.pool.pool->ring : nullptr};
    if (entries != 0) {
        parts.entries = memory.data() + sizeof(ControlBlock);
        parts.entry_count = entries;
        memory.register_entries(device, pd, sizeof(ControlBlock), entries_bytes, 0);
        parts.entries_lkey = memory.entries().lkey;
    }
    parts.terms = kind.terms(parts);
    qp.end->set_flow(kind.make(*qp.end, parts));
}

FlowBlock RuntimeState::flow_block_of(const QpSlot& qp) noexcept {
    if (qp.flow == FlowControl::off) {
        return {};
    }
    return {.addr = qp.control_memory.addr(), .rkey = qp.control_memory.block().rkey, .kind = qp.flow};
}

void RuntimeState::start_flow_here(QpSlot& qp, const FlowBlock& peer) {
    require_same_flow(qp, peer.kind);
    if (peer.kind != FlowControl::off && qp.qp != nullptr) {  // else the device was lost meanwhile
        // The QP is in RTS. Only in RTS does a provider say that it keeps writes in order, and only in RTS does the QP
        // have the limits on which both ends agreed.
        Device& device = *devices_[qp.device]->device;
        const ibv_qp_attr attr = device.query(qp.qp.get(), IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC);
        workers_[qp.worker]->proxy->start_flow(qp.handle, {.peer_addr = peer.addr,
                                                           .peer_rkey = peer.rkey,
                                                           .in_order = device.writes_in_order(qp.qp.get()),
                                                           .reads = attr.max_rd_atomic != 0,
                                                           .readable = attr.max_dest_rd_atomic != 0});
    }
}

void RuntimeState::require_same_flow(const QpSlot& qp, FlowControl peer) {
    const FlowControl own = flow_block_of(qp).kind;
    if (own != peer) {
        throw Error(EPROTOTYPE, fmt::format("queue pair {} has {}, and its peer {}", qp.called(),
                                            flow_control_text(own), flow_control_text(peer)));
    }
}

// Moves the queue pair to ERR: the worker posts nothing more, and the device flushes the posted work.
void RuntimeState::fail_flow_here(const WorkerSlot& worker, std::uint32_t index, std::uint16_t generation,
                                  FlowFault fault) {
    QpSlot* qp = find_qp({static_cast<std::uint16_t>(index), generation});
    if (qp == nullptr || workers_[qp->worker].get() != &worker || qp->qp == nullptr) {
        return;  // the queue pair was closed or reset meanwhile, or has lost its device
    }
    log_of_qp(LogLevel::error, with_owner(*qp), "{}{}",
              is_own(fault) ? "" : "its peer broke the agreement on flow control: ", text_of(fault));
    Transition error = to_state(IBV_QPS_ERR);
    modify_here(*qp, error.attr, error.mask, QpState::error, status_of(fault));
}

}  // namespace pollcore
