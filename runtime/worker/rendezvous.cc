// Messages by rendezvous: announced to a peer that reads them, and read from one that has announced.
//
// The announcement is a request of the send queue like the message that it stands for, so what was posted before it has ended
// when it has. The message's own request ends when the peer's count of messages that it has read says so.
#include <arpa/inet.h>

#include "worker/worker.hpp"

namespace pollcore {

// ---- As a sender ----

/// Whether a message that is too long for the peer's buffers can be read by it.
bool Worker::can_announce(const WorkerQp& qp, const WorkRequest& request, std::uint64_t length) noexcept {
    const CreditFlow& flow = *qp.flow;
    return length <= flow.rendezvous_max && request.num_sge == 1 && request.rkey != 0 && request.opcode != Opcode::send_with_inv &&
           (request.flags & kInline) == 0;
}

/// In place of the message, which has its credit.
[[gnu::noinline]] void Worker::announce(WorkerSession& session, WorkerQp& qp, const WorkRequest& request) noexcept {
    CreditFlow& flow = *qp.flow;
    ring_doorbells();  // what was taken before goes out before it
    InFlightEntry& entry = qp.sends.push();
    entry = {.tag = request.tag,
             .session = &session,
             .lkey = request.sge.lkey,
             .opcode = request.opcode,
             .flags = InFlightEntry::known(request.flags),
             .num_sge = 1,
             .kind = InFlightEntry::Kind::announced};
    if (qp.state == QpState::error) {
        entry.kind = InFlightEntry::Kind::unposted;
        entry.status = qp.unposted_status;
        drain_unposted(qp, qp.sends);
        due(qp);
        return;
    }
    Announcement::Words words = Announcement{.addr = request.sge.addr,
                                             .rkey = request.rkey,
                                             .length = request.sge.length,
                                             .number = flow.consumed,
                                             .with_imm = has_imm(request.opcode)}
                                    .pack();
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(words.data()), .length = sizeof(words), .lkey = 0};
    ibv_send_wr wr{};
    wr.wr_id = WrId{qp.handle, false, qp.sends.next_position() - 1}.pack();
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.send_flags = (request.flags & (kFence | kSolicited)) | unsigned{IBV_SEND_SIGNALED} | unsigned{IBV_SEND_INLINE};
    wr.imm_data = has_imm(request.opcode) ? htonl(request.imm_data) : 0;
    wr.wr.rdma.remote_addr = flow.peer_addr + ControlBlock::kAnnouncement;
    wr.wr.rdma.rkey = flow.peer_rkey;
    ibv_send_wr* bad = nullptr;
    turn_.counters.send_doorbells.add();
    if (ibv_post_send(qp.qp, &wr, &bad) != 0) {
        complete_refused(qp, qp.sends, wr.wr_id);
        return;
    }
    qp.unsignaled_run = 0;
    flow.announced = {.state = AnnouncedSend::State::posted};
    turn_.counters.sends.add();
    turn_.counters.rendezvous.add();
    list(qp);
}

/// The announcement has left the send queue: with success the request waits for the peer, else it ends like any other.
void Worker::complete_announced(WorkerQp& qp, const InFlightEntry& entry, const ibv_wc& wc) noexcept {
    if (wc.status == IBV_WC_SUCCESS && qp.state == QpState::error && !qp.flush_held) {
        qp.flow->announced = {};
        deliver_by_runtime(qp, entry, qp.unposted_status);  // now: what waited behind it stands in the table
        return;
    }
    if (wc.status == IBV_WC_SUCCESS) {
        qp.flow->announced = {.state = AnnouncedSend::State::arrived,
                              .tag = entry.tag,
                              .session = entry.session,
                              .lkey = entry.lkey,
                              .opcode = entry.opcode,
                              .flags = entry.flags};
        return;
    }
    qp.flow->announced = {};
    Completion completion;
    completion.status = static_cast<Status>(wc.status);
    completion.vendor_err = wc.vendor_err;
    end_send(qp, entry, completion);
}

[[nodiscard]] static InFlightEntry entry_of(const AnnouncedSend& announced) noexcept {
    return {.tag = announced.tag,
            .session = announced.session,
            .lkey = announced.lkey,
            .opcode = announced.opcode,
            .flags = announced.flags,
            .num_sge = 1};
}

/// Ends the announced message if the peer has read it.
std::uint32_t Worker::end_announced(WorkerQp& qp) noexcept {
    CreditFlow& flow = *qp.flow;
    if (!flow.announced.arrived() || !flow.peer_has_read()) {
        return 0;
    }
    const InFlightEntry entry = entry_of(flow.announced);
    ++flow.read_by_peer;
    flow.announced = {};
    Completion completion;
    end_send(qp, entry, completion);
    return 1;
}

/// The queue pair is in error. What the peer has not said to have read fails, behind everything that was posted.
void Worker::flush_announced(WorkerQp& qp) noexcept {
    AnnouncedSend& announced = qp.flow->announced;
    if (!announced.arrived()) {
        return;  // it stands in the table, if there is one
    }
    InFlightEntry& entry = qp.sends.push();
    entry = entry_of(announced);
    entry.kind = InFlightEntry::Kind::unposted;
    entry.status = qp.unposted_status;
    announced = {};
}

// ---- As a receiver ----

/// A write with immediate has taken a receive of a queue pair with credits. True: it was an announcement's, and holds no message.
bool Worker::take_announcement(WorkerQp& qp, const Completion& completion) noexcept {
    CreditFlow& flow = *qp.flow;
    if (qp.rendezvous.pool == nullptr) {
        return false;
    }
    const Announcement what = flow.block->read_announcement();
    if (!what.valid || what.number != flow.used + 1) {
        return false;  // a write with immediate of the application's
    }
    flow.block->forget_announcement();
    if (qp.state == QpState::error) {
        return true;  // the device follows soon
    }
    if (flow.receiving.state != AnnouncedRecv::State::none || what.length > qp.rendezvous.pool->buffer_bytes) {
        fail_flow(qp, FlowFault::bad_announcement);
        return true;
    }
    flow.receiving = {.state = AnnouncedRecv::State::waiting, .what = what, .imm_data = completion.imm_data};
    list(qp);
    return true;
}

/// Reads what was announced, once there is a buffer for it.
std::uint32_t Worker::read_announced(WorkerQp& qp) noexcept {
    CreditFlow& flow = *qp.flow;
    PoolTaker& taker = qp.rendezvous;
    WorkerPool& pool = *taker.pool;
    if (taker.wanted() == 0 || pool.buffers.free() == 0 || pool.session->broken()) {
        return 0;
    }
    const std::uint32_t buffer = pool.buffers.take();
    ibv_sge sge{.addr = pool.addr + std::uint64_t{buffer} * pool.stride, .length = flow.receiving.what.length, .lkey = pool.lkey};
    ibv_send_wr wr{};
    wr.wr_id = WrId{qp.handle, false, qp.sends.next_position()}.pack();
    wr.sg_list = &sge;
    wr.num_sge = flow.receiving.what.length == 0 ? 0 : 1;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = flow.receiving.what.addr;
    wr.wr.rdma.rkey = flow.receiving.what.rkey;
    qp.sends.push() = {.tag = pool_tag(pool.handle, buffer), .opcode = Opcode::rdma_read, .kind = InFlightEntry::Kind::reading};
    ibv_send_wr* bad = nullptr;
    turn_.counters.send_doorbells.add();
    if (ibv_post_send(qp.qp, &wr, &bad) != 0) {
        qp.sends.pop_back();
        pool.buffers.put_back(buffer);
        turn_.counters.post_failures.add();
        fail_flow(qp, FlowFault::post_refused);
        return 1;
    }
    ++reads_;
    ++taker.posted;
    pool.session->take_pooled(1);
    pool.counters->posted.add();
    qp.unsignaled_run = 0;
    flow.receiving.state = AnnouncedRecv::State::reading;
    return 1;
}

void Worker::complete_reading(WorkerQp& qp, const InFlightEntry& entry, const ibv_wc& wc) noexcept {
    CreditFlow& flow = *qp.flow;
    --reads_;
    const AnnouncedRecv what = std::exchange(flow.receiving, {});
    if (wc.status != IBV_WC_SUCCESS) {
        return_unused(qp.rendezvous, entry);
        due(qp);
        return;
    }
    came_back(qp.rendezvous);
    Completion completion;
    completion.qp = qp.handle;
    completion.byte_len = what.what.length;
    if (what.what.with_imm) {
        completion.flags = kWithImm;
        completion.imm_data = what.imm_data;
    }
    turn_.set_device_time(0);  // it is of the runtime's read, and of no receive
    hand_out(qp.rendezvous, static_cast<std::uint32_t>(entry.tag), completion, nullptr);
    ++flow.read;
    list(qp);
    if (qp.state == QpState::error) {
        due(qp);
    }
}

/// An announcement or a read that no completion came for.
[[gnu::cold]] void Worker::lose_rendezvous(WorkerQp& qp, const InFlightEntry& entry, Status status) noexcept {
    if (entry.kind == InFlightEntry::Kind::announced) {
        qp.flow->announced = {};
        turn_.counters.cut_short.add();
        deliver_by_runtime(qp, entry, status);
    } else {
        --reads_;
        qp.flow->receiving = {};
        return_unused(qp.rendezvous, entry);
    }
}

}  // namespace pollcore
