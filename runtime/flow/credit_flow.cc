#include "flow/credit_flow.hpp"

namespace pollcore {

constinit const FlowKind flow_kinds::credits{
    .send_entries = BlockFlow::kWritesMax + Rendezvous::kReadsMax,
    .access = {.read = true, .write = true},  // the peer reads announced messages, and writes to our control block
    .needs_receives = true,
    .shares_receives = true,
    .rendezvous_reads = Rendezvous::kReadsMax,
    .terms =
        [](const FlowParts& parts) {
            return FlowTerms{.depth = parts.grants != nullptr ? parts.grants->each() : parts.receives,
                             .message_max = parts.message_max};
        },
    .make = [](WorkerQp& qp, FlowParts& parts) -> std::unique_ptr<Flow> {
        return std::make_unique<CreditFlow>(qp, parts);
    }};

CreditFlow::CreditFlow(WorkerQp& qp, FlowParts& parts)
    : BlockFlow(qp, parts), shared_(parts.grants), rendezvous_(qp, *this, block()) {
    if (shared_ != nullptr) {
        watch_receives();
    } else {
        qp.recvs().set_watcher(this);
    }
    if (parts.rendezvous != nullptr) {
        rendezvous_.read_into(*parts.rendezvous, parts.rendezvous_buffers);
    }
}

void CreditFlow::begin_life(Turn& turn) noexcept {
    rendezvous_.begin_life();
    used_ = 0;
    BlockFlow::begin_life(turn);
    if (shared_ != nullptr) {
        shared_->join(turn, *this);
    }
}

// Needs work only for a shared receive queue: its other queue pairs get the receives that this one did not use.
void CreditFlow::end_life(Turn& turn) noexcept {
    if (shared_ != nullptr) {
        shared_->leave(turn, *this);
    }
}

void CreditFlow::dismiss(Turn& turn) noexcept {
    end_life(turn);
    rendezvous_.dismiss();
}

void CreditFlow::complete_terms(Turn&, FlowTerms& terms) noexcept {
    terms.rendezvous_max = BlockFlow::start().reads ? rendezvous_.read_max() : 0;
}

void CreditFlow::take_terms(const FlowTerms& terms) noexcept {
    rendezvous_.set_announce_max(BlockFlow::start().readable ? terms.rendezvous_max : 0);
}

// ---- Receives ----

void CreditFlow::receives_posted(Turn& turn, std::uint32_t n) noexcept {
    offer_more(n);
    turn.flows.add(*this);
}

void CreditFlow::grants_added(Turn& turn, std::uint32_t n) noexcept {
    receives_posted(turn, n);
}

bool CreditFlow::received(Turn& turn, const Completion& completion, bool pooled) noexcept {
    bool announcement = false;
    if (pooled && completion.ok() && completion.opcode == CompletionOpcode::recv_rdma_with_imm) {
        announcement = rendezvous_.take_announcement(turn, completion, used());
        settle();
    }
    if (shared_ != nullptr) {
        if (used() == told() || !shared_->use(turn, *this)) [[unlikely]] {
            qp().fail_flow(turn, FlowFault::too_many_messages);  // the message took another peer's receive
        } else {
            ++used_;
        }
    }
    return announcement;
}

// ---- Completions of entries that the flow control has posted ----

void CreditFlow::completed(Turn& turn, const InFlightEntry& entry, const ibv_wc& wc) noexcept {
    if (entry.kind == InFlightEntry::Kind::flow) {
        BlockFlow::completed(turn, entry, wc);
    } else {
        if (rendezvous_.completed(turn, entry, wc)) {
            count_read();
        }
        settle();
    }
}

bool CreditFlow::passed_over(Turn& turn, const InFlightEntry& entry, Status status) noexcept {
    if (entry.kind == InFlightEntry::Kind::flow) {
        return BlockFlow::passed_over(turn, entry, status);
    }
    rendezvous_.lose(turn, entry, status);
    settle();
    return true;
}

// ---- Each step ----

std::uint32_t CreditFlow::turn_announced(Turn& turn) noexcept {
    std::uint32_t work = rendezvous_.read(turn);
    if (!qp().in_error()) {
        work += rendezvous_.end_announced(turn);
    }
    settle();
    return work;
}

}  // namespace pollcore
