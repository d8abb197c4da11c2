// From an in-flight entry to a completion in its session's ring, or to a place given back.
#include "worker/worker.hpp"

namespace pollcore {
namespace {

CompletionOpcode completion_opcode(Opcode opcode) noexcept {
    switch (opcode) {
        case Opcode::rdma_write:
        case Opcode::rdma_write_with_imm:
            return CompletionOpcode::rdma_write;
        case Opcode::send:
        case Opcode::send_with_imm:
            return CompletionOpcode::send;
        case Opcode::rdma_read:
            return CompletionOpcode::rdma_read;
        case Opcode::atomic_cmp_and_swp:
            return CompletionOpcode::comp_swap;
        case Opcode::atomic_fetch_and_add:
            return CompletionOpcode::fetch_add;
        case Opcode::recv:
            return CompletionOpcode::recv;
    }
    return CompletionOpcode::send;
}

}  // namespace

// `completion` holds what the device said; the rest comes from the entry.
void Worker::deliver(WorkerQp& qp, const InFlightEntry& entry, Completion& completion) noexcept {
    completion.tag = entry.tag;
    completion.qp = qp.handle;
    if (is_recv(entry.opcode)) {
        completion.flags |= kFromRecvQueue;
        if (completion.opcode != CompletionOpcode::recv_rdma_with_imm) {
            completion.opcode = CompletionOpcode::recv;
        }
    } else {
        completion.opcode = completion_opcode(entry.opcode);
    }
    settle(qp, entry);
    stage(*sessions_[entry.session], completion);
}

[[gnu::cold]] void Worker::deliver_by_runtime(WorkerQp& qp, const InFlightEntry& entry, Status status) noexcept {
    Completion completion;
    completion.status = status;
    completion.flags = kByRuntime;
    deliver(qp, entry, completion);
}

// Its slot was reserved when the request was taken, so this finds room; a consumer that takes slots back
// has tampered with the ring.
void Worker::stage(WorkerSession& session, const Completion& completion) noexcept {
    if (session.completions.reserve(session.staged + 1u) < session.staged + 1u) [[unlikely]] {
        break_session(session);
        return;
    }
    if (session.staged == 0) {
        touched_.push_back(&session);
    }
    session.completions.write(session.staged++, completion);
    counters_.delivered.add();
}

// Gives back what the entry held: its share of the queue and its place among the session's requests.
void Worker::settle(WorkerQp& qp, const InFlightEntry& entry) noexcept {
    WorkerSession& session = *sessions_[entry.session];
    Share& share = session.shares[qp.handle.index];
    --(is_recv(entry.opcode) ? share.recvs : share.sends);
    --session.in_flight;
    session.unsignaled -= !entry.signaled;
}

void Worker::retire_entry(WorkerQp& qp, const InFlightEntry& entry) noexcept {
    settle(qp, entry);
    WorkerSession& session = *sessions_[entry.session];
    Share& share = session.shares[qp.handle.index];
    ++share.retired;
    ++session.retired;
    // Release, with the acquire in Session::refresh_retired: the device is done with the buffer.
    session.retired_counts[qp.handle.index].store(share.retired, std::memory_order_release);
    session.header->retired.store(session.retired, std::memory_order_release);
    counters_.retired.add();
}

// Entries that the provider does not have complete when all before them have (I2).
void Worker::drain_unposted(WorkerQp& qp, InFlightTable& table) noexcept {
    while (!table.empty()) {
        const InFlightEntry entry = table.front();
        if (entry.kind == InFlightEntry::Kind::posted || entry.kind == InFlightEntry::Kind::marker) {
            return;
        }
        table.pop();
        if (entry.kind == InFlightEntry::Kind::unposted) [[unlikely]] {
            deliver_by_runtime(qp, entry, entry.status);
        }
    }
}

void Worker::publish_completions() noexcept {
    for (WorkerSession* session : touched_) {
        session->completions.commit(session->staged);
        session->staged = 0;
    }
    touched_.clear();
}

[[gnu::cold]] void Worker::break_session(WorkerSession& session) noexcept {
    if (session.broken) {
        return;
    }
    session.broken = true;
    counters_.broken_sessions.add();
    answer(0, AnswerKind::session_broken, session.index, session.id);
}

}  // namespace pollcore
