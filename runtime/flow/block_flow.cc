#include "flow/block_flow.hpp"

#include <array>

namespace pollcore {
namespace {

// The time after which a sleeping worker looks at a control block again. The peer's writes to the block raise no event.
// kLookForCreditNs holds while requests wait. kLookForTermsNs holds while no request waits, and the peer may still send
// its terms.
constexpr std::uint64_t kLookForCreditNs = 50'000;
constexpr std::uint64_t kLookForTermsNs = 1'000'000;

}  // namespace

void BlockFlow::start(Turn& turn, const FlowStart& start) noexcept {
    start_ = start;
    connected_ = true;
    turn.flows.add(*this);
}

void BlockFlow::begin_life(Turn&) noexcept {
    close_gate();
    block_.clear();
    connected_ = terms_sent_ = agreed_ = false;
    announced_ = busy_ = false;
    depth_ = message_max_ = credit_ = writes_ = unsignaled_writes_ = read_ = read_told_ = 0;
    granted_ = offered_ = told_ = counts_from_;
    probe_at_ = 0;
    set_gate();
}

void BlockFlow::set_gate() noexcept {
    close_gate();
    if (flows() && !frames() && !qp().in_error()) {
        qp().gate().open(credit_, message_max_);
        gate_open_ = true;
    }
}

// ---- As a sender ----

/// Returns true if the request need not wait. If the request needs credit, the credit was taken.
bool BlockFlow::admit(Opcode opcode, std::uint32_t length) noexcept {
    if (!waiting().empty() || announced_) {
        return false;
    }
    if (!takes_receive(opcode)) {
        return true;
    }
    return agreed_ && consume(length);
}

/// Returns true if the peer's terms allow no message of this length, and the message cannot be announced either.
bool BlockFlow::is_too_long(const WorkRequest& request, std::uint64_t length) const noexcept {
    return agreed_ && is_send(request.opcode) && (length > message_max_ || depth_ == 0) &&
           !can_announce(request, length);
}

bool BlockFlow::hold(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                     std::size_t slot) noexcept {
    return hold_unless([this](std::uint32_t length) { return consume(length); }, turn, session, share, request, slot);
}

[[gnu::noinline]] bool BlockFlow::hold_back(Turn& turn, WorkerSession& session, Share& share,
                                            const WorkRequest& request, std::size_t slot,
                                            std::uint64_t length) noexcept {
    const auto bytes = static_cast<std::uint32_t>(length);
    if (is_too_long(request, length)) {
        session.give_up(turn, share, request, Status::message_too_long);
        return true;
    }
    if (!must_announce(request.opcode, bytes)) {
        return keep_waiting(turn, session, request, slot, bytes);
    }
    if (admit(request.opcode, bytes) || !keep_waiting(turn, session, request, slot, bytes)) {
        announce(turn, session, request);
        set_gate();
    }
    return true;
}

/// Called when a request finds too little credit. Returns true if the request waits. Returns false if the caller must
/// post it now, because the peer has granted more or the queue pair is in error.
bool BlockFlow::keep_waiting(Turn& turn, WorkerSession& session, const WorkRequest& request, std::size_t slot,
                             std::uint32_t length) noexcept {
    if (flows() && (!take_grants(turn) || admit(request.opcode, length))) {
        return false;  // if the queue pair is in error, the request ends when it is posted
    }
    keep(turn, session, request, slot);
    set_gate();
    turn.counters.waits_for_credit.add();
    return true;
}

/// Returns the peer's grants if they are more than granted_. Fewer grants come from an old write that arrived late.
std::optional<std::uint32_t> BlockFlow::news_of_grants() const noexcept {
    // Acquire: the peer wrote the grants after it had posted the receives, or read the lines, that it grants.
    const auto word = GrantWord::unpack(block_.grants[0].load(std::memory_order_acquire));
    return word && static_cast<std::int32_t>(*word - granted_) > 0 ? word : std::nullopt;
}

/// Adds new grants to the credit. Returns false, with the queue pair in error, if there are more than the terms allow.
bool BlockFlow::take_grants(Turn& turn) noexcept {
    const std::optional<std::uint32_t> word = news_of_grants();
    if (!word) {
        return true;
    }
    if (*word - consumed() > depth_) {
        qp().fail_flow(turn, FlowFault::too_many_grants);
        return false;
    }
    close_gate();
    credit_ += *word - granted_;
    granted_ = *word;
    set_gate();
    return true;
}

// Posts waiting requests in order, as far as credit and the step's budget allow.
[[gnu::noinline]] std::uint32_t BlockFlow::post_waiting(Turn& turn) noexcept {
    std::uint32_t posted = 0;
    while (!waiting().empty() && !announced_ && qp().sends().take_budget(turn)) {
        const WorkRequest request = waiting().copy(0);
        WorkerSession& session = waiting().front_session();
        const std::uint64_t bytes = takes_receive(request.opcode) ? message_length(request, waiting(), 0) : 0;
        const auto length = static_cast<std::uint32_t>(bytes);
        const bool announces = must_announce(request.opcode, length);
        if (takes_receive(request.opcode)) {
            if (is_too_long(request, bytes)) {  // the request began to wait before the peer's terms were known
                session.give_up(turn, session.share(qp().handle().index), request, Status::message_too_long);
                waiting().pop(slots_of(request));
                ++posted;
                continue;
            }
            if (!consume(length) && (!take_grants(turn) || !consume(length))) {
                break;
            }
        }
        if (announces) {
            turn.chains.ring(turn);
            if (qp().in_error()) {
                break;
            }
            announce(turn, session, request);
            waiting().pop(slots_of(request));
        } else if (!post_front(turn, request)) {
            break;
        }
        ++posted;
    }
    turn.chains.ring(turn);
    set_gate();
    return posted;
}

/// A refused request takes no receive of the peer, so it gives its credit back. With write rings it cannot. Then
/// returns true if the connection must end, because the peer would wait for ever for the missing record.
bool BlockFlow::refused(Opcode opcode, bool others) noexcept {
    if (!gives_credit_back()) {
        return others || is_send(opcode);
    }
    if (takes_receive(opcode)) {
        const bool open = gate_open_;
        close_gate();
        ++credit_;
        if (open) {
            set_gate();
        }
    }
    return false;
}

void BlockFlow::completed(Turn&, const InFlightEntry&, const ibv_wc&) noexcept {
    --writes_;
}

bool BlockFlow::passed_over(Turn&, const InFlightEntry&, Status) noexcept {
    --writes_;
    return false;
}

// ---- Each step ----

// A peer that has vanished is as silent as a peer that has no receives. So while requests wait, or an announced message
// has not ended, this end writes its grants to the peer again. If the peer has vanished, the write fails after the
// transport's retries, and the queue pair fails, too.
[[gnu::always_inline]] inline bool BlockFlow::probe(Turn& turn) noexcept {
    if ((waiting().empty() && !announced_) || turn.options.probe_cycles == 0) {
        probe_at_ = 0;
        return false;
    }
    if (probe_at_ != 0 && turn.now() < probe_at_) {
        return false;
    }
    const bool is_due = std::exchange(probe_at_, turn.now() + turn.options.probe_cycles) != 0;
    return is_due && write_grants(turn);
}

bool BlockFlow::turn(Turn& turn, std::uint32_t& work) noexcept {
    if (qp().in_error() || !connected_) {
        return false;
    }
    if (!running()) {
        return true;
    }
    if (!agreed_ || !terms_sent_) [[unlikely]] {
        work += agree(turn);
    }
    if (busy_ && !qp().in_error()) [[unlikely]] {
        work += turn_announced(turn);
    }
    if (qp().in_error()) [[unlikely]] {
        return false;
    }
    if (agreed_ && terms_sent_ && owes()) {
        work += write_grants(turn);
    }
    if (agreed_ && !waiting().empty()) {
        work += post_waiting(turn);
    }
    if (terms_sent_ && !qp().in_error()) {
        work += probe(turn);
    }
    return unsettled();
}

/// Accepts the peer's terms, and sends this end's terms if a request waits or the peer's terms have come. This end does
/// not send its terms earlier: a peer that is not connected yet would not answer, and the write could break the
/// connection. A waiting request shows that the application expects the peer to be connected.
std::uint32_t BlockFlow::agree(Turn& turn) noexcept {
    std::uint32_t work = 0;
    if (const auto terms = agreed_ ? std::nullopt : block_.read_terms()) {
        if (const FlowFault fault = check_terms(*terms, features()); fault != FlowFault::none) {
            qp().fail_flow(turn, fault);
            return 1;
        }
        depth_ = terms->depth;
        message_max_ = terms->message_max;
        take_terms(*terms);
        agreed_ = true;
        set_gate();
        qp().publish_record();
        ++work;
    }
    if (!terms_sent_ && (agreed_ || !waiting().empty())) {
        terms_sent_ = write_terms(turn);
        work += terms_sent_;
    }
    return work;
}

bool BlockFlow::has_news(std::uint64_t now) const noexcept {
    if (!connected_ || qp().life() != QpLife::ready) {
        return false;
    }
    // Writes that are due but could not be posted are tried again.
    if ((agreed_ && owes()) || (busy_ && announced_news()) || (!terms_sent_ && (agreed_ || !waiting().empty())) ||
        (probe_at_ != 0 && now >= probe_at_)) {
        return true;
    }
    if (!agreed_) {
        return block_.read_terms().has_value();
    }
    return !waiting().empty() && !announced_ && news_of_grants().has_value();
}

std::uint64_t BlockFlow::look_every_ns() const noexcept {
    return !waiting().empty() || announced_ ? kLookForCreditNs : kLookForTermsNs;
}

// ---- Writes into the peer's control block ----

bool BlockFlow::write_grants(Turn& turn) noexcept {
    std::array<std::uint64_t, 2> words{GrantWord::pack(offered_), GrantWord::pack(read_)};
    if (!write(turn, {.addr = reinterpret_cast<std::uintptr_t>(words.data()), .length = sizeof(words), .lkey = 0},
               ControlBlock::kGrants, IBV_SEND_INLINE)) {
        return false;
    }
    told_ = offered_;
    read_told_ = read_;
    turn.counters.grants.add();
    return true;
}

bool BlockFlow::write_terms(Turn& turn) noexcept {
    complete_terms(turn, terms_);
    block_.set_own(terms_);
    return write(
        turn, {.addr = reinterpret_cast<std::uintptr_t>(block_.own.data()), .length = sizeof(FlowTerms), .lkey = lkey_},
        ControlBlock::kTerms, 0);
}

/// Returns false if nothing was posted: kWritesMax writes are in flight, or the provider refused the write.
bool BlockFlow::write(Turn& turn, ibv_sge sge, std::size_t to, unsigned flags) noexcept {
    if (writes_ == kWritesMax) {
        return false;
    }
    const bool signal = unsignaled_writes_ + 1 >= kWritesMax / 2;
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = flags | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u);
    wr.wr.rdma.remote_addr = start_.peer_addr + to;
    wr.wr.rdma.rkey = start_.peer_rkey;
    if (!qp().sends().post_now(turn, qp().handle(), {.kind = InFlightEntry::Kind::flow}, wr)) {
        return false;
    }
    ++writes_;
    unsignaled_writes_ = signal ? 0 : unsignaled_writes_ + 1;
    return true;
}

}  // namespace pollcore
