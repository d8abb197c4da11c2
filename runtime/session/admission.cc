// Requests in: what decides on this side whether one is taken (I3), and how it is written; and buffers that are given back.
#include <algorithm>
#include <cstring>

#include "base/bare.hpp"
#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "base/planted.hpp"
#include "peer/record.hpp"
#include "session/session_core.hpp"

namespace pollcore {

// ---- Admission: admit(), and for requests like one that it let through admits_at_once() and admits_short(), with ordinary_room() ----

/// The generation has come again, and nothing of the life that the account is of is in flight any more. False as long as what that one
/// completed with may stand in the ring.
[[gnu::cold, gnu::noinline]] bool SessionCore::begin_epoch(QpAccount& account, std::uint16_t epoch) noexcept {
    if ((account.sends() != 0 || account.recvs() != 0) && (inbox_.ready() || inbox_.awaits_reply())) {
        return false;
    }
    account.begin_epoch(epoch);
    return true;
}

[[gnu::always_inline]] inline bool SessionCore::completion_room() noexcept {
    // Taken completions count only once the worker can know that their slots are free.
    if (accounts_.room(inbox_.given_back()) != 0) [[likely]] {
        return true;
    }
    refresh_room();
    return accounts_.room(inbox_.given_back()) != 0;
}

[[gnu::noinline]] void SessionCore::refresh_room() noexcept {
    inbox_.give_back();
    accounts_.refresh();
}

/// For a plain request: the account of its queue pair, when all that admit() looks at of that is as it was when it let a request through, and
/// another one has room. Else null.
[[gnu::always_inline]] inline QpAccount* SessionCore::known(RequestHead head, std::uint32_t inline_length) noexcept {
    const std::uint32_t index = head.qp_index();
    if (index > accounts_.qps_mask()) [[unlikely]] {
        return nullptr;
    }
    QpAccount& mine = accounts_.at(index);
    const bool as_it_was = mine.knows(accounts_.status(index)) && head.qp_generation() == mine.generation() && inline_length <= mine.inline_max() &&
                           (!kAdmission || mine.sends() < mine.send_depth());
    return as_it_was ? &mine : nullptr;
}

[[gnu::always_inline]] inline bool SessionCore::admits_at_once(RequestHead head, std::uint32_t inline_length, std::uint64_t bytes) noexcept {
    const QpAccount* const mine = known(head, inline_length);
    return mine != nullptr && (mine->admits(head) || (mine->admits_short(head) && bytes <= accounts_.message_max(head.qp_index())));
}

// Inlined, so that each way of submitting has only those checks that it can fail.
[[gnu::always_inline]] inline Refusal SessionCore::admit(const WorkRequest& request, std::uint32_t num_sge, std::uint32_t inline_length,
                                                         std::uint64_t bytes, std::uint32_t slots, std::size_t ahead) noexcept {
    if ((attention_ & kUnusable) != 0) [[unlikely]] {
        return Refusal::session_closed;
    }
    const RequestHead head = head_of(request);
    if (slots == 1 && head.is_plain(kInline | RequestHead::kReplyInLine) && admits_at_once(head, inline_length, bytes)) [[likely]] {
        return admit_slots(slots, ahead);
    }
    if (request.opcode == Opcode::srq_recv) [[unlikely]] {
        return inline_length != 0 ? Refusal::bad_flags : admit_shared(request, num_sge, slots, ahead);
    }
    if (request.qp.index > accounts_.qps_mask() || !request.qp.valid()) [[unlikely]] {
        return Refusal::stale_handle;
    }
    const QpRecord& record = accounts_.record(request.qp.index);
    const std::uint64_t status = accounts_.status(request.qp.index);
    const auto qp = QpStatusWord::unpack(status);
    if (qp.generation != request.qp.generation && !planted(Bug::stale_handle)) [[unlikely]] {
        return refuse_unknown(request.qp);
    }
    if (qp.state == QpState::closed) [[unlikely]] {
        return Refusal::stale_handle;
    }
    if (qp.state == QpState::error) [[unlikely]] {
        return Refusal::qp_in_error;
    }
    if (num_sge > qp.sges_max) [[unlikely]] {
        return Refusal::too_many_sges;
    }
    const auto limits = QpLimitsWord::unpack(record.limits.load(std::memory_order_relaxed));
    QpAccount& mine = accounts_.renewed(request.qp);
    if (mine.epoch() != qp.epoch && !begin_epoch(mine, qp.epoch)) [[unlikely]] {
        return Refusal::completion_ring_full;
    }
    if (is_recv(request.opcode)) {
        if (!(qp.flags & QpStatusWord::kReceives)) [[unlikely]] {
            return Refusal::not_receiver;
        }
        if (request.flags != 0 || inline_length != 0) [[unlikely]] {
            return Refusal::bad_flags;
        }
        if (mine.recvs() >= limits.recv_depth) {
            return Refusal::receive_queue_full;
        }
    } else {
        if (!allows(limits.opcodes, request.opcode)) [[unlikely]] {
            return Refusal::bad_opcode;
        }
        if ((request.flags & ~(kFence | kSignaled | kSolicited)) != 0) [[unlikely]] {
            return Refusal::bad_flags;
        }
        if (is_local(request.opcode)) [[unlikely]] {
            if (num_sge != 0) {
                return Refusal::too_many_sges;
            }
            if ((request.flags & kSolicited) != 0 ||
                (request.opcode == Opcode::bind_mw && (request.bind_access & ~kWindowAccessKnown) != 0)) {
                return Refusal::bad_flags;
            }
        }
        if (is_atomic(request.opcode) &&
            (request.remote_addr % sizeof(std::uint64_t) != 0 || num_sge != 1 || bytes != sizeof(std::uint64_t))) [[unlikely]] {
            return Refusal::misaligned_atomic;
        }
        if (qp.state != QpState::ready) [[unlikely]] {
            return Refusal::not_connected;
        }
        if (inline_length > qp.inline_max) [[unlikely]] {
            return Refusal::inline_too_long;
        }
        if ((qp.flags & QpStatusWord::kFlow) != 0 && is_send(request.opcode)) [[unlikely]] {
            const auto longest = MessageLimitsWord::unpack(record.longest.load(std::memory_order_relaxed));
            if (longest.message_max != 0 && bytes > longest.message_max) {
                const bool readable = num_sge == 1 && request.rkey != 0 && request.opcode != Opcode::send_with_inv;
                if (!readable || bytes > longest.rendezvous_max) {
                    return Refusal::message_too_long;
                }
            }
            summing_ = (qp.flags & QpStatusWord::kSums) != 0;
        }
        if (mine.sends() >= limits.send_depth) {
            if (limits.send_depth == 0) {
                return Refusal::no_share;
            }
            accounts_.refresh_retired(request.qp);
            if (mine.sends() >= limits.send_depth) {
                return Refusal::send_queue_full;
            }
        }
        if (!mine.knows(status)) [[unlikely]] {
            mine.learn(status, limits.opcodes, limits.send_depth);  // from here on admits_at_once() knows what this status means
        }
    }
    if (slots > submissions_.capacity()) [[unlikely]] {
        return inline_length > 0 ? Refusal::inline_too_long : Refusal::too_many_sges;
    }
    return admit_slots(slots, ahead);
}

/// The worker has told this session nothing of the queue pair.
[[gnu::noinline]] Refusal SessionCore::refuse_unknown(QpHandle qp) const noexcept {
    return host_->has_queue_pair(qp) ? Refusal::no_share : Refusal::stale_handle;
}

/// Admits a request that has its SGE, if any, in itself.
[[gnu::always_inline]] inline Refusal SessionCore::admit_own(const WorkRequest& request, std::size_t ahead) noexcept {
    return request.num_sge == 1 ? admit(request, 1, 0, request.sge.length, 1, ahead) : admit_without_sge(request, ahead);
}

[[gnu::noinline]] Refusal SessionCore::admit_without_sge(const WorkRequest& request, std::size_t ahead) noexcept {
    if (request.num_sge > 1) {
        return Refusal::too_many_sges;
    }
    if (request.sge.length != 0 && !is_local(request.opcode)) {  // a bind has its operands there
        return Refusal::no_sge;
    }
    return admit(request, 0, 0, 0, 1, ahead);
}

/// RingProducer::reserve.
[[gnu::always_inline]] inline std::size_t SessionCore::reserve_slots(std::size_t wanted) noexcept {
    const std::size_t n = submissions_.reserve(wanted);
    inbox_.make_way(n);
    return n;
}

/// What every request needs: the slots of its own and one for its completion.
[[gnu::always_inline]] inline Refusal SessionCore::admit_slots(std::uint32_t slots, std::size_t ahead) noexcept {
    if (!completion_room()) {
        return Refusal::completion_ring_full;
    }
    if (reserve_slots(ahead + slots) < ahead + slots) {
        wants_slots_ = true;
        return Refusal::submission_ring_full;
    }
    return Refusal::none;
}

[[gnu::noinline]] Refusal SessionCore::admit_shared(const WorkRequest& request, std::uint32_t num_sge, std::uint32_t slots,
                                                std::size_t ahead) noexcept {
    const SrqHandle handle = request.srq;
    if (handle.index >= kSrqsMax || !handle.valid()) {
        return Refusal::stale_handle;
    }
    const auto srq = SrqStatusWord::unpack(accounts_.srq_status(handle.index));
    if (srq.generation != handle.generation) {
        return Refusal::stale_handle;
    }
    if (num_sge > srq.sges_max || slots > submissions_.capacity()) {
        return Refusal::too_many_sges;
    }
    if (request.flags != 0) {
        return Refusal::bad_flags;
    }
    if (srq.depth == 0) {
        return Refusal::not_receiver;
    }
    if (accounts_.shared_recvs(handle) >= srq.depth) {
        return Refusal::srq_full;
    }
    return admit_slots(slots, ahead);
}

[[gnu::noinline]] void SessionCore::note(const WorkRequest& request) noexcept {
    (request.opcode == Opcode::srq_recv ? log_->srq(request.srq.index)
     : is_recv(request.opcode)          ? log_->recvs(request.qp.index)
                                        : log_->sends(request.qp.index))
        .add(request);
}

[[gnu::always_inline]] inline void SessionCore::count_accepted(const WorkRequest& request) noexcept {
    if (planted(Bug::late_word)) {
        wake_worker();
    }
    if (logs()) [[unlikely]] {
        note(request);
    }
    accounts_.count(request);
}

/// Of a request that was counted and is being written: bits for its last word.
[[gnu::always_inline]] inline std::uint64_t SessionCore::expect_reply(const WorkRequest& request) noexcept {
    const RequestHead head = head_of(request);
    return inbox_.expect_reply(head, !accounts_.past_lives() && accounts_.of(request.qp).sends() == 1);
}

// ---- Submission ----

namespace {

[[nodiscard]] std::uint64_t sum_of(std::span<const std::byte> payload) noexcept {
    PayloadSum sum;
    sum.add(payload.data(), payload.size());
    return sum.finish();
}

/// Of a request with one SGE at most.
[[nodiscard]] std::span<const Sge> own_sges(const WorkRequest& request) noexcept { return {&request.sge, request.num_sge}; }

/// Bug::published_early.
void push_early(RingProducer<WorkRequest>& ring, const WorkRequest& request) noexcept {
    (void)ring.try_push(WorkRequest{});
    schedule_point(SchedulePoint::publish);
    ring.write(std::size_t(-1), request);
}

}  // namespace

/// The request with the sum of its payload (FlowControl::ring).
[[gnu::noinline]] WorkRequest SessionCore::summed(const WorkRequest& request, std::span<const Sge> sges) noexcept {
    summing_ = false;
    PayloadSum sum;
    for (const Sge& sge : sges) {
        sum.add(reinterpret_cast<const std::byte*>(sge.addr), sge.length);
    }
    WorkRequest with = request;
    with.payload_sum = sum.finish();
    return with;
}

[[gnu::always_inline]] inline void SessionCore::count_refused() noexcept {
    ++refused_;
    summing_ = false;
}

/// A request that stands in its slot and is not published may be the one of many that is followed.
[[gnu::always_inline]] inline void SessionCore::sample(WorkRequest& slot, Opcode opcode) noexcept {
    if (kStageLatency && accounts_.accepted() >= next_sample_) [[unlikely]] {
        follow(slot, opcode);
    }
}

// Of receives there is no time to be told: the next send is it.
[[gnu::noinline]] void SessionCore::follow(WorkRequest& slot, Opcode opcode) noexcept {
    if (is_recv(opcode)) {
        return;
    }
    // Up to 64 more or fewer, in no pattern: what a program repeats, a signal for every 64th send and 32 receives at once, would else be
    // met always in the same place.
    const std::uint32_t scattered = ++followed_ * 2654435761u >> 25;
    next_sample_ = accounts_.accepted() + kLatencySampleEvery - 64 + scattered;
    slot.submitted_at = static_cast<std::uint32_t>(cycles_now()) | 1;  // 0: it is not followed
}

/// Of those that are written: not always the first, which waits the least.
[[gnu::noinline]] void SessionCore::follow_one_of(std::span<const WorkRequest> requests) noexcept {
    const std::size_t begin = accounts_.accepted() % requests.size();
    for (std::size_t i = 0; i < requests.size() && accounts_.accepted() >= next_sample_; ++i) {
        const std::size_t at = (begin + i) % requests.size();
        follow(submissions_.written(at), requests[at].opcode);
    }
}

// A worker that never sleeps costs no more than the question.
[[gnu::always_inline]] inline void SessionCore::submitted() noexcept {
    if (worker_sleeps_ && !planted(Bug::late_word)) [[unlikely]] {
        wake_worker();
    }
}

[[gnu::noinline]] void SessionCore::wake_worker() noexcept {
    if (header_.worker_sleep.take()) {
        // Relaxed: for a statistic; the worker reads it after it has seen the event.
        header_.woken_at.store(cycles_now(), std::memory_order_relaxed);
        signal_event(waking_.worker_fd);
    }
}

[[gnu::always_inline]] inline Refusal SessionCore::try_submit(const WorkRequest& request) noexcept {
    submissions_.prefetch();
    const Refusal refusal = admit_own(request);
    if (refusal != Refusal::none) {
        count_refused();
        return refusal;
    }
    count_accepted(request);
    if (planted(Bug::published_early)) {
        push_early(submissions_, request);
        submitted();
        return Refusal::none;
    }
    if (summing_) [[unlikely]] {
        (void)submissions_.try_push(summed(request, own_sges(request)));
        submitted();
        return Refusal::none;
    }
    (void)submissions_.try_push([&](WorkRequest& slot) {  // admit() reserved it
        std::memcpy(static_cast<void*>(&slot), &request, offsetof(WorkRequest, qp));
        sample(slot, request.opcode);
        return head_of(request).word() | expect_reply(request);
    });
    submitted();
    return Refusal::none;
}

/// So many requests have room whatever they are. Where each has to be noted, none goes this way.
[[gnu::always_inline]] inline std::size_t SessionCore::ordinary_room(std::size_t wanted) noexcept {
    if ((attention_ & (kUnusable | kLogged)) != 0) [[unlikely]] {
        return 0;
    }
    if (!kAdmission) {
        return reserve_slots(wanted);
    }
    if (accounts_.room(inbox_.given_back()) < wanted) [[unlikely]] {
        refresh_room();
    }
    return std::min<std::size_t>(accounts_.room(inbox_.given_back()), reserve_slots(wanted));
}

/// Of `requests` those at the front that admit() would let through at once, behind `ahead` that are written. Returns how many.
[[gnu::noinline]] std::size_t SessionCore::write_ordinary(std::span<const WorkRequest> requests, std::size_t ahead) noexcept {
    const std::size_t reserved = ordinary_room(ahead + requests.size());
    const std::size_t most = std::min(requests.size(), reserved - std::min(ahead, reserved));
    // Requests of one queue pair often stand together: it is looked up, and its account is written, once for all of them.
    std::uint64_t looked_up = ~std::uint64_t{0};  // no handle's bits
    QpAccount* mine = nullptr;
    std::uint32_t more = 0;
    std::uint32_t room = 0;
    const auto settle = [&] {
        if (mine != nullptr) {
            mine->count_sends(more);
        }
    };
    std::size_t n = 0;
    for (; n < most; ++n) {
        const RequestHead head = head_of(requests[n]);
        if (!head.is_plain_with_sge(kInline | RequestHead::kReplyInLine)) [[unlikely]] {
            break;
        }
        if (head.qp_bits() != looked_up) {
            settle();
            mine = nullptr;
            QpAccount* const account = known(head, 0);
            if (account == nullptr || !account->admits(head)) [[unlikely]] {
                break;
            }
            looked_up = head.qp_bits();
            mine = account;
            room = mine->send_depth() - mine->sends();
            more = 0;
        } else if (!mine->admits(head) || (kAdmission && more >= room)) [[unlikely]] {
            break;
        }
        more += kAdmission;
        submissions_.write(ahead + n, requests[n]);
    }
    settle();
    accounts_.count_ordinary(n);
    return n;
}

/// As write_ordinary(), of messages to one queue pair whose peer limits their length.
[[gnu::noinline]] std::size_t SessionCore::write_short(std::span<const WorkRequest> requests, std::size_t ahead) noexcept {
    const RequestHead first = head_of(requests.front());
    if (!first.is_plain_with_sge(kInline | RequestHead::kReplyInLine) || !admits_at_once(first, 0, requests.front().sge.length)) {
        return 0;
    }
    const std::size_t reserved = ordinary_room(ahead + requests.size());
    QpAccount& mine = accounts_.at(first.qp_index());
    const std::size_t most = std::min({requests.size(), reserved - std::min(ahead, reserved), std::size_t{mine.send_depth() - mine.sends()}});
    const std::uint32_t longest = accounts_.message_max(first.qp_index());
    std::size_t n = 0;
    for (; n < most; ++n) {
        const RequestHead head = head_of(requests[n]);
        if (!head.is_plain_with_sge(kInline | RequestHead::kReplyInLine) || head.qp_bits() != first.qp_bits() || !mine.admits_short(head) ||
            requests[n].sge.length > longest) {
            break;
        }
        submissions_.write(ahead + n, requests[n]);
    }
    mine.count_sends(static_cast<std::uint32_t>(n));
    accounts_.count_ordinary(n);
    return n;
}

[[gnu::always_inline]] inline Submitted SessionCore::try_submit(std::span<const WorkRequest> requests) noexcept {
    if (requests.size() == 1) {
        const Refusal refusal = try_submit(requests.front());
        return {refusal == Refusal::none, refusal};
    }
    submissions_.prefetch();
    // Written and not yet published: the worker sees all of them at once, and rings one doorbell.
    Submitted result{.accepted = write_ordinary(requests, 0)};
    while (result.accepted < requests.size()) {
        const std::span<const WorkRequest> rest = requests.subspan(result.accepted);
        const RequestHead head = head_of(rest.front());
        const QpAccount& account = accounts_.of(rest.front().qp);
        const std::size_t n = account.admits(head)         ? write_ordinary(rest, result.accepted)
                              : account.admits_short(head) ? write_short(rest, result.accepted)
                                                           : 0;
        if (n != 0) [[likely]] {
            result.accepted += n;
            continue;
        }
        const WorkRequest& request = requests[result.accepted];
        const std::size_t ahead = result.accepted;
        result.refusal = admit_own(request, ahead);
        if (result.refusal != Refusal::none) {
            count_refused();
            break;
        }
        count_accepted(request);
        if (!summing_) [[likely]] {
            submissions_.write(ahead, request);
        } else {
            submissions_.write(ahead, summed(request, own_sges(request)));
        }
        ++result.accepted;
    }
    if (result.accepted > 0) {
        if (kStageLatency && accounts_.accepted() >= next_sample_) [[unlikely]] {
            follow_one_of(requests.first(result.accepted));
        }
        submissions_.commit(result.accepted);
        submitted();
    }
    return result;
}

[[gnu::always_inline]] inline Refusal SessionCore::try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept {
    if (sges.size() > kSgesMax) {
        count_refused();
        return Refusal::too_many_sges;
    }
    submissions_.prefetch();
    const auto num_sge = static_cast<std::uint32_t>(sges.size());
    const std::uint32_t slots = slots_for_sges(num_sge);
    std::uint64_t bytes = 0;
    for (const Sge& sge : sges) {
        bytes += sge.length;
    }
    const Refusal refusal = admit(request, num_sge, 0, bytes, slots);
    if (refusal != Refusal::none) {
        count_refused();
        return refusal;
    }
    count_accepted(request);
    WorkRequest first = request;
    first.num_sge = static_cast<std::uint8_t>(num_sge);
    if (num_sge > 0) {
        first.sge = sges[0];  // else a bind's operands stand there
    }
    if (summing_) [[unlikely]] {
        first = summed(first, sges);
    }
    submissions_.write(0, first);
    for (std::uint32_t slot = 1, next = 1; slot < slots; ++slot) {
        WorkRequestContinuation more;
        for (std::size_t i = 0; i < WorkRequestContinuation::kSges && next < num_sge; ++i, ++next) {
            std::memcpy(more.payload.data() + i * sizeof(Sge), &sges[next], sizeof(Sge));
        }
        submissions_.write(slot, std::bit_cast<WorkRequest>(more));
    }
    sample(submissions_.written(0), request.opcode);
    submissions_.commit(slots);
    submitted();
    return Refusal::none;
}

[[gnu::always_inline]] inline Refusal SessionCore::try_submit_inline(const WorkRequest& request, std::span<const std::byte> payload) noexcept {
    if (payload.size() > kInlineMax) {
        count_refused();
        return Refusal::inline_too_long;
    }
    submissions_.prefetch();
    const bool takes_inline = allows(kInlineOpcodes, request.opcode);
    const auto length = static_cast<std::uint32_t>(payload.size());
    const std::uint32_t slots = slots_for_inline(length);
    const Refusal refusal = !takes_inline ? Refusal::bad_opcode : admit(request, 0, length, length, slots);
    if (refusal != Refusal::none) {
        count_refused();
        return refusal;
    }
    count_accepted(request);
    // In place: a changed copy would have to leave the store buffer before it could be copied again.
    const auto fill = [&](WorkRequest& first) {
        std::memcpy(static_cast<void*>(&first), &request, offsetof(WorkRequest, qp));
        first.sge.length = length;
        if (summing_) [[unlikely]] {
            summing_ = false;
            first.payload_sum = sum_of(payload);
        }
        if (length <= WorkRequest::kOwnPayload) {
            std::copy(payload.begin(), payload.end(), reinterpret_cast<std::byte*>(&first) + offsetof(WorkRequest, swap));
        }
        sample(first, request.opcode);
        return head_of(request).as_inline().word() | (slots == 1 ? expect_reply(request) : 0);
    };
    if (slots == 1) [[likely]] {
        (void)submissions_.try_push(fill);  // admit() reserved it
    } else {
        submissions_.write(0, fill);
        for (std::uint32_t slot = 1; slot < slots; ++slot) {
            const std::span<const std::byte> rest = payload.subspan((slot - 1) * WorkRequestContinuation::kPayload);
            submissions_.write(slot, [&](WorkRequest& more) {
                std::memcpy(static_cast<void*>(&more), rest.data(), std::min(WorkRequestContinuation::kPayload, rest.size()));
                return std::uint64_t{0};
            });
        }
        submissions_.commit(slots);
    }
    submitted();
    return Refusal::none;
}

// Those of one pool that stand together share a slot of the ring.
[[gnu::always_inline]] inline Submitted SessionCore::release(std::span<const Completion> completions) noexcept {
    Submitted result;
    if ((attention_ & kUnusable) != 0) {
        result.refusal = Refusal::session_closed;
        return result;
    }
    std::size_t slots = 0;
    // What was polled leaves the ring here, as far as the worker can see: a buffer that it gets back may fill the slot again.
    inbox_.give_back();
    while (result.accepted < completions.size()) {
        if (!completions[result.accepted].pooled()) {
            ++result.accepted;
            continue;
        }
        if (reserve_slots(slots + 1) < slots + 1) {
            wants_slots_ = true;
            count_refused();
            result.refusal = Refusal::submission_ring_full;
            break;
        }
        ReleaseRequest request{.pool = completions[result.accepted].pool()};
        for (; result.accepted < completions.size() && request.count < ReleaseRequest::kBuffers; ++result.accepted) {
            const Completion& completion = completions[result.accepted];
            if (completion.pooled() && completion.pool() == request.pool) {
                request.buffers[request.count++] = completion.buffer();
            } else if (completion.pooled()) {
                break;
            }
        }
        submissions_.write(slots++, std::bit_cast<WorkRequest>(request));
    }
    if (slots > 0) {
        submissions_.commit(slots);
        submitted();
    }
    return result;
}

// ---- As Session has them ----

namespace {

/// Of `n` requests or completions that are given to no session.
constexpr Submitted without_session(std::size_t n) noexcept { return {0, n == 0 ? Refusal::none : Refusal::session_closed}; }

}  // namespace

Refusal Session::try_submit(const WorkRequest& request) noexcept {
    if (core_ == nullptr) [[unlikely]] {
        return Refusal::session_closed;
    }
    core_->check_thread(user_.thread);
    return core_->try_submit(request);
}

Submitted Session::try_submit(std::span<const WorkRequest> requests) noexcept {
    if (core_ == nullptr) [[unlikely]] {
        return without_session(requests.size());
    }
    core_->check_thread(user_.thread);
    return core_->try_submit(requests);
}

Refusal Session::try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept {
    if (core_ == nullptr) [[unlikely]] {
        return Refusal::session_closed;
    }
    core_->check_thread(user_.thread);
    return core_->try_submit(request, sges);
}

Refusal Session::try_submit_inline(const WorkRequest& request, std::span<const std::byte> payload) noexcept {
    if (core_ == nullptr) [[unlikely]] {
        return Refusal::session_closed;
    }
    core_->check_thread(user_.thread);
    return core_->try_submit_inline(request, payload);
}

Submitted Session::release(std::span<const Completion> completions) noexcept {
    if (core_ == nullptr) [[unlikely]] {
        return without_session(completions.size());
    }
    core_->check_thread(user_.thread);
    return core_->release(completions);
}

}  // namespace pollcore
