// Flow control of queue pairs: the memory where a peer says what it has posted, and what becomes of one that lies.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <string_view>

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
        case FlowFault::bad_announcement: return "it announced a message that is too long, or while another was being read";
        case FlowFault::post_refused: return "the provider refused a request between others that must not go without it";
        case FlowFault::completion_lost: return "the provider lost the completion of an announced message";
        case FlowFault::too_many_grants: return "it grants more receives than its terms allow";
    }
    return "it wrote nonsense";
}

std::string_view text_of(FlowControl kind) {
    switch (kind) {
        case FlowControl::off: return "no flow control";
        case FlowControl::credits: return "flow control by credits";
        case FlowControl::ring: return "flow control by write rings";
    }
    return "flow control that is not known here";
}

}  // namespace

// Each has a region of its own, so that a peer reaches its own block and no other.
void RuntimeState::add_flow_control(const QpSpec& spec, QpSlot& qp, std::uint32_t send_depth) {
    const bool rings = spec.flow == FlowControl::ring;
    if (spec.type != QpType::rc) {
        throw Error(EINVAL, "flow control needs a reliable connection (QpType::rc)");
    }
    if (!rings && !spec.srq.valid() && spec.recv_depth == 0) {
        throw Error(EINVAL, "flow control by credits needs receives: recv_depth = 0");
    }
    if (!spec.remote_access.write) {
        throw Error(EINVAL, "flow control needs remote_access.write: the peer writes its grants");
    }
    Device& device = *devices_[qp.device]->device;
    const std::uint32_t frames = rings ? std::bit_ceil(qp.send_entries) : 0;
    qp.control_block = platform->allocate(sizeof(ControlBlock) + frames * sizeof(RecordFrame), device.numa_node(), "flow control of a queue pair");
    auto* block = new (qp.control_block.data()) ControlBlock;
    qp.control_mr = UniqueMr(device.register_memory(pds_.at(qp.pd).pd.get(), block, sizeof(ControlBlock),
                                                    reinterpret_cast<std::uintptr_t>(block),
                                                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
                             {&device});
    // What the application posts itself may be of any length.
    const PoolSlot* pool = qp.srq != nullptr ? qp.srq->pool.pool : qp.pool.pool;
    const std::uint32_t message_max = pool != nullptr ? pool->end->message_max() : rings ? 0 : std::numeric_limits<std::uint32_t>::max();
    const std::uint32_t slots = std::max(slots_for_sges(std::max(spec.sges_max, 1u)), slots_for_inline(spec.inline_max));
    BlockFlow::Options options{.block = block,
                               .lkey = qp.control_mr->lkey,
                               .terms = {.message_max = message_max},
                               .waiting = WaitingRequests(std::max(send_depth, 1u), slots)};
    WorkerQp& end = *qp.end;
    if (rings) {
        end.set_flow(make_ring_flow(qp, std::move(options), frames));
        return;
    }
    options.terms.depth = qp.srq != nullptr ? qp.srq->grants->each() : spec.recv_depth;
    auto flow = std::make_unique<CreditFlow>(end, std::move(options), qp.srq != nullptr ? qp.srq->grants.get() : nullptr);
    if (qp.srq == nullptr) {
        end.recvs().set_watcher(flow.get());
    }
    if (qp.rendezvous.pool != nullptr) {
        flow->rendezvous().read_into(*qp.rendezvous.pool->buffers, qp.rendezvous.buffers);
    }
    end.set_flow(std::move(flow));
}

std::unique_ptr<Flow> RuntimeState::make_ring_flow(QpSlot& qp, BlockFlow::Options options, std::uint32_t frames) {
    Device& device = *devices_[qp.device]->device;
    auto* frame = reinterpret_cast<RecordFrame*>(static_cast<std::byte*>(qp.control_block.data()) + sizeof(ControlBlock));
    qp.frames_mr = UniqueMr(device.register_memory(pds_.at(qp.pd).pd.get(), frame, frames * sizeof(RecordFrame),
                                                   reinterpret_cast<std::uintptr_t>(frame), 0),
                            {&device});
    RingPool* pool = nullptr;
    if (qp.pool.pool != nullptr) {
        pool = qp.pool.pool->ring;
        options.terms.depth = pool->ring().lines();
        options.terms.ring_addr = pool->addr();
        options.terms.ring_rkey = pool->rkey();
    }
    return std::make_unique<RingFlow>(*qp.end, std::move(options), RingFlow::Frames{frame, frames, qp.frames_mr->lkey}, pool);
}

FlowBlock RuntimeState::flow_block_of(const QpSlot& qp) noexcept {
    if (qp.flow == FlowControl::off) {
        return {};
    }
    return {.addr = reinterpret_cast<std::uintptr_t>(qp.control_block.data()), .rkey = qp.control_mr->rkey, .kind = qp.flow};
}

void RuntimeState::start_flow_here(QpSlot& qp, const FlowBlock& peer) {
    require_same_flow(qp, peer.kind);
    if (peer.kind != FlowControl::off && qp.qp != nullptr) {  // else its device was lost meanwhile
        // Asked in RTS, where a provider that keeps the order says so, and the connection has what its ends have agreed on.
        Device& device = *devices_[qp.device]->device;
        const ibv_qp_attr attr = device.query(qp.qp.get(), IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC);
        workers_[qp.worker]->proxy->start_flow(qp.handle, {.peer_addr = peer.addr,
                                                           .peer_rkey = peer.rkey,
                                                           .in_order = device.writes_in_order(qp.qp.get()),
                                                           .reads = attr.max_rd_atomic != 0,
                                                           .readable = qp.remote_access.read && attr.max_dest_rd_atomic != 0});
    }
}

void RuntimeState::require_same_flow(const QpSlot& qp, FlowControl peer) {
    const FlowControl own = flow_block_of(qp).kind;
    if (own != peer) {
        throw Error(EPROTOTYPE, fmt::format("queue pair {} has {}, and its peer {}", qp.qp_num, text_of(own), text_of(peer)));
    }
}

// The worker posts nothing more; the device flushes what was posted.
void RuntimeState::fail_flow_here(const WorkerSlot& worker, std::uint32_t index, std::uint16_t generation, FlowFault fault) {
    QpSlot* qp = find_qp({static_cast<std::uint16_t>(index), generation});
    if (qp == nullptr || workers_[qp->worker].get() != &worker || qp->qp == nullptr) {
        return;  // it was closed or reset meanwhile
    }
    log_of_qp(LogLevel::error, with_owner(*qp), "{}{}", is_own(fault) ? "" : "its peer broke the agreement on flow control: ", text_of(fault));
    Transition error = to_state(IBV_QPS_ERR);
    modify_here(*qp, error.attr, error.mask, QpState::error, status_of(fault));
}

}  // namespace pollcore
