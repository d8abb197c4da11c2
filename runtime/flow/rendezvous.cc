#include "flow/rendezvous.hpp"

#include <arpa/inet.h>

namespace pollcore {

void Rendezvous::begin_life() noexcept {
    announce_max_ = 0;
    state_ = State::none;
    flushed_ = false;
    reading_ = Reading::none;
    read_by_peer_ = 0;
}

// ---- As a sender ----

[[gnu::noinline]] void Rendezvous::announce(Turn& turn, WorkerSession& session, const WorkRequest& request,
                                            std::uint32_t number, std::uint64_t peer_block,
                                            std::uint32_t rkey) noexcept {
    turn.chains.ring(turn);  // earlier requests go out before the announcement
    InFlightEntry entry = entry_of(session, request, InFlightEntry::known(request.flags), 1);
    if (qp_.in_error()) {
        qp_.leave_unposted(turn, entry);
        return;
    }
    entry.announce();
    Announcement::Words words = Announcement{.addr = request.sge.addr,
                                             .rkey = request.rkey,
                                             .length = request.sge.length,
                                             .number = number,
                                             .with_imm = has_imm(request.opcode)}
                                    .pack();
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(words.data()), .length = sizeof(words), .lkey = 0};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.send_flags = (request.flags & (kFence | kSolicited)) | unsigned{IBV_SEND_SIGNALED} | unsigned{IBV_SEND_INLINE};
    wr.imm_data = has_imm(request.opcode) ? htonl(request.imm_data) : 0;
    wr.wr.rdma.remote_addr = peer_block + ControlBlock::kAnnouncement;
    wr.wr.rdma.rkey = rkey;
    if (!qp_.sends().post_now(turn, qp_.handle(), entry, wr)) {
        qp_.refuse(turn, entry);
        return;
    }
    qp_.sends().count_signal(true);
    state_ = State::posted;
    turn.counters.sends.add();
    turn.counters.rendezvous.add();
    turn.flows.add(flow_);
}

/// The announcement has left the send queue. If it succeeded, the request waits until the peer has read the message. If
/// it failed, the request ends like any other.
void Rendezvous::complete_announced(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept {
    state_ = State::none;
    if (wc.status != IBV_WC_SUCCESS) {
        Completion completion;
        completion.status = static_cast<Status>(wc.status);
        completion.vendor_err = wc.vendor_err;
        qp_.end_send(turn, entry, completion);
    } else if (flushed_) {
        // The request ends at once, because requests that waited behind it are in the send queue's table already.
        qp_.end_send_by_runtime(turn, entry, qp_.unposted_status());
    } else {
        state_ = State::arrived;
        request_ = entry;
    }
}

bool Rendezvous::peer_has_read() const noexcept {
    // Acquire: the peer wrote the count after it had read the message.
    return state_ == State::arrived &&
           GrantWord::unpack(block_.grants[1].load(std::memory_order_acquire)) == read_by_peer_ + 1;
}

std::uint32_t Rendezvous::end_announced(Turn& turn) noexcept {
    if (!peer_has_read()) {
        return 0;
    }
    ++read_by_peer_;
    state_ = State::none;
    Completion completion;
    qp_.end_send(turn, request_, completion);
    return 1;
}

void Rendezvous::flush(Turn& turn) noexcept {
    flushed_ = true;
    if (state_ == State::arrived) {  // otherwise the send queue's table holds the request, if there is one
        state_ = State::none;
        qp_.leave_unposted(turn, request_);
    }
}

// ---- As a receiver ----

bool Rendezvous::take_announcement(Turn& turn, const Completion& completion, std::uint32_t used) noexcept {
    if (pool_.pool() == nullptr) {
        return false;
    }
    const Announcement what = block_.read_announcement();
    if (!what.valid || what.number != used + 1) {
        return false;  // a write with immediate of the peer's application
    }
    block_.forget_announcement();
    if (qp_.in_error()) {
        return true;  // the device will be in error soon, too
    }
    if (reading_ != Reading::none || what.length > read_max()) {
        qp_.fail_flow(turn, FlowFault::bad_announcement);
        return true;
    }
    reading_ = Reading::waits;
    what_ = what;
    imm_data_ = completion.imm_data;
    turn.flows.add(flow_);
    return true;
}

std::uint32_t Rendezvous::read(Turn& turn) noexcept {
    if (reading_ != Reading::waits || pool_.available() == 0 || pool_.pool()->session().broken()) {
        return 0;
    }
    pool_.count_taken(1);
    const std::uint32_t buffer = pool_.take();
    ibv_sge sge = pool_.pool()->sge(buffer, what_.length);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = what_.length == 0 ? 0 : 1;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = what_.addr;
    wr.wr.rdma.rkey = what_.rkey;
    const InFlightEntry entry{.tag = pool_tag(pool_.pool()->handle(), buffer),
                              .opcode = Opcode::rdma_read,
                              .kind = InFlightEntry::Kind::reading};
    if (!qp_.sends().post_now(turn, qp_.handle(), entry, wr)) {
        pool_.return_unused(buffer);
        qp_.fail_flow(turn, FlowFault::post_refused);
        return 1;
    }
    turn.begin_read();
    qp_.sends().count_signal(true);
    reading_ = Reading::under_way;
    return 1;
}

bool Rendezvous::complete_read(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept {
    turn.end_read();
    reading_ = Reading::none;
    const auto buffer = static_cast<std::uint32_t>(entry.tag);
    if (wc.status == IBV_WC_SUCCESS) {
        Completion completion;
        completion.qp = qp_.handle();
        completion.byte_len = what_.length;
        if (what_.with_imm) {
            completion.flags = kWithImm;
            completion.imm_data = imm_data_;
        }
        turn.set_device_time(0);  // the device's time belongs to the runtime's read, not to a receive (D37)
        pool_.hand_out(turn, buffer, completion, nullptr);
        turn.flows.add(flow_);
    } else {
        pool_.return_unused(buffer);
    }
    if (qp_.in_error()) {
        qp_.look_again(turn);  // the end of the pool's receives may have waited for this read
    }
    return wc.status == IBV_WC_SUCCESS;
}

// ---- As a sender and as a receiver ----

bool Rendezvous::completed(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept {
    if (entry.kind == InFlightEntry::Kind::announced) {
        complete_announced(turn, entry, wc);
        return false;
    }
    return complete_read(turn, entry, wc);
}

[[gnu::cold]] void Rendezvous::lose(Turn& turn, const InFlightEntry& entry, Status status) noexcept {
    if (entry.kind == InFlightEntry::Kind::announced) {
        state_ = State::none;
        turn.counters.cut_short.add();
        qp_.end_send_by_runtime(turn, entry, status);
        return;
    }
    turn.end_read();
    reading_ = Reading::none;
    pool_.return_unused(static_cast<std::uint32_t>(entry.tag));
    qp_.look_again(turn);
}

}  // namespace pollcore
