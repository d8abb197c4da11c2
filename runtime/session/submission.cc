// Counts, writes and publishes admitted requests.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bare.hpp"
#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "base/planted.hpp"
#include "peer/record.hpp"
#include "session/admission.hpp"

namespace pollcore {

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

[[gnu::noinline]] void SessionCore::note_sends(std::span<const WorkRequest> requests) noexcept {
    for (const WorkRequest& request : requests) {
        log_->sends(request.qp.index).add(request);
    }
}

/// Counts written requests that are in the accounts of their queue pairs already. None of them is a receive.
[[gnu::always_inline]] inline void SessionCore::count_written(std::span<const WorkRequest> requests) noexcept {
    if (logs()) [[unlikely]] {
        note_sends(requests);
    }
    accounts_.count_ordinary(requests.size());
}

/// Returns bits for the last word of a request that was counted and is being written: see
/// CompletionInbox::expect_reply.
[[gnu::always_inline]] inline std::uint64_t SessionCore::expect_reply(const WorkRequest& request) noexcept {
    const RequestHead head = head_of(request);
    return inbox_.expect_reply(head, !accounts_.past_lives() && accounts_.of(request.qp).sends() == 1);
}

namespace {

[[nodiscard]] std::uint64_t sum_of(std::span<const std::byte> payload) noexcept {
    PayloadSum sum;
    sum.add(payload.data(), payload.size());
    return sum.finish();
}

/// The SGEs of a request that has at most one.
[[nodiscard]] std::span<const Sge> own_sges(const WorkRequest& request) noexcept {
    return {&request.sge, request.num_sge};
}

/// Bug::published_early: publishes a slot before the request is written into it.
void push_early(RingProducer<WorkRequest>& ring, const WorkRequest& request) noexcept {
    (void)ring.try_push(WorkRequest{});
    schedule_point(SchedulePoint::publish);
    ring.write(std::size_t(-1), request);
}

}  // namespace

/// Returns the checksum of a payload (FlowControl::ring).
[[gnu::noinline]] std::uint64_t SessionCore::sum(std::span<const Sge> sges) noexcept {
    summing_ = false;
    PayloadSum sum;
    for (const Sge& sge : sges) {
        sum.add(reinterpret_cast<const std::byte*>(sge.addr), sge.length);
    }
    return sum.finish();
}

/// Starts to follow the request in `slot` if it is time to follow another one, for stage latency. `slot` is written and
/// not yet published.
[[gnu::always_inline]] inline void SessionCore::sample(WorkRequest& slot, Opcode opcode) noexcept {
    if (kStageLatency && accounts_.accepted() >= next_sample_) [[unlikely]] {
        follow(slot, opcode);
    }
}

// Receives are not followed: the next send is followed instead.
[[gnu::noinline]] void SessionCore::follow(WorkRequest& slot, Opcode opcode) noexcept {
    if (is_recv(opcode)) {
        return;
    }
    // The distance to the next followed request varies by up to 64, without a pattern. Programs have patterns of their
    // own, such as a signal for every 64th send, or 32 receives at once. With a fixed distance, the followed requests
    // could always be at the same place of such a pattern.
    const std::uint32_t scattered = ++followed_ * 2654435761u >> 25;
    next_sample_ = accounts_.accepted() + kLatencySampleEvery - 64 + scattered;
    slot.submitted_at = static_cast<std::uint32_t>(cycles_now()) | 1;  // never 0: 0 means that it is not followed
}

/// Follows one of the written requests, not always the first: the first request waits the shortest time.
[[gnu::noinline]] void SessionCore::follow_one_of(std::span<const WorkRequest> requests) noexcept {
    const std::size_t begin = accounts_.accepted() % requests.size();
    for (std::size_t i = 0; i < requests.size() && accounts_.accepted() >= next_sample_; ++i) {
        const std::size_t at = (begin + i) % requests.size();
        const auto before = requests.first(at);
        const std::size_t slot =
            std::accumulate(before.begin(), before.end(), std::size_t{0},
                            [](std::size_t slots, const WorkRequest& request) { return slots + slots_of(request); });
        follow(submissions_.written(slot), requests[at].opcode);
    }
}

[[gnu::noinline]] void SessionCore::wake_worker() noexcept {
    if (header_.worker_sleep.take()) {
        // Relaxed: only a statistic, which the worker reads after it has seen the event.
        header_.woken_at.store(cycles_now(), std::memory_order_relaxed);
        signal_event(waking_.worker_fd);
    }
}

[[gnu::always_inline]] inline Refusal SessionCore::try_submit(const WorkRequest& request) noexcept {
    submissions_.prefetch();
    const Refusal refusal = admit_own(request);
    if (refusal != Refusal::none) {
        return refused(request, refusal);
    }
    count_accepted(request);
    if (planted(Bug::published_early)) {
        push_early(submissions_, request);
        submitted();
        return Refusal::none;
    }
    (void)submissions_.try_push([&](WorkRequest& slot) {  // admit() has reserved the slot
        std::memcpy(static_cast<void*>(&slot), &request, offsetof(WorkRequest, qp));
        if (summing_) [[unlikely]] {
            slot.payload_sum = sum(own_sges(request));
            return head_of(request).word();
        }
        sample(slot, request.opcode);
        return head_of(request).word() | expect_reply(request);
    });
    submitted();
    return Refusal::none;
}

/// Writes requests from the beginning of `requests`, up to the first one that needs admit(). `ahead` requests are
/// written already. Returns how many this call has written.
[[gnu::noinline]] std::size_t SessionCore::write_ordinary(std::span<const WorkRequest> requests,
                                                          std::size_t ahead) noexcept {
    const std::size_t reserved = ordinary_room(ahead + requests.size());
    const std::size_t most = std::min(requests.size(), reserved - std::min(ahead, reserved));
    // Successive requests are often for the same queue pair. The queue pair is then looked up only once, and its
    // account is written only once (D8).
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
    count_written(requests.first(n));
    return n;
}

/// As write_ordinary(), for successive requests to one queue pair whose peer limits the length of messages.
[[gnu::noinline]] std::size_t SessionCore::write_short(std::span<const WorkRequest> requests,
                                                       std::size_t ahead) noexcept {
    const RequestHead first = head_of(requests.front());
    if (!first.is_plain_with_sge(kInline | RequestHead::kReplyInLine) ||
        !admits_at_once(first, 0, requests.front().sge.length)) {
        return 0;
    }
    const std::size_t reserved = ordinary_room(ahead + requests.size());
    QpAccount& mine = accounts_.at(first.qp_index());
    const std::size_t most = std::min(
        {requests.size(), reserved - std::min(ahead, reserved), std::size_t{mine.send_depth() - mine.sends()}});
    const std::uint32_t longest = accounts_.message_max(first.qp_index());
    std::size_t n = 0;
    for (; n < most; ++n) {
        const RequestHead head = head_of(requests[n]);
        if (!head.is_plain_with_sge(kInline | RequestHead::kReplyInLine) || head.qp_bits() != first.qp_bits() ||
            !mine.admits_short(head) || requests[n].sge.length > longest) {
            break;
        }
        submissions_.write(ahead + n, requests[n]);
    }
    mine.count_sends(static_cast<std::uint32_t>(n));
    count_written(requests.first(n));
    return n;
}

/// Fills the slot of a request with an inline payload, but for its last word. Written in place: a changed copy would
/// have to leave the store buffer before it could be copied into the slot (D10).
[[gnu::always_inline]] inline void SessionCore::fill_inline(WorkRequest& slot, const WorkRequest& request,
                                                            std::span<const std::byte> payload) noexcept {
    std::memcpy(static_cast<void*>(&slot), &request, offsetof(WorkRequest, qp));
    slot.sge.length = static_cast<std::uint32_t>(payload.size());
    if (summing_) [[unlikely]] {
        summing_ = false;
        slot.payload_sum = sum_of(payload);
    }
    if (payload.size() <= WorkRequest::kOwnPayload) {
        std::copy(payload.begin(), payload.end(), reinterpret_cast<std::byte*>(&slot) + offsetof(WorkRequest, swap));
    }
}

/// Writes the payload of the request in slot `first` into the slots behind it. The request has `slots` slots.
[[gnu::always_inline]] inline void SessionCore::write_continuations(std::span<const std::byte> payload,
                                                                    std::size_t first, std::uint32_t slots) noexcept {
    for (std::uint32_t slot = 1; slot < slots; ++slot) {
        const std::span<const std::byte> rest = payload.subspan((slot - 1) * WorkRequestContinuation::kPayload);
        submissions_.write(first + slot, [&](WorkRequest& more) {
            std::memcpy(static_cast<void*>(&more), rest.data(),
                        std::min(WorkRequestContinuation::kPayload, rest.size()));
            return std::uint64_t{0};
        });
    }
}

/// Writes a request with kInline into the `slots` slots that begin at `slot`.
[[gnu::always_inline]] inline void SessionCore::write_payload(const WorkRequest& request, std::size_t slot,
                                                              std::uint32_t slots) noexcept {
    const std::span<const std::byte> payload{reinterpret_cast<const std::byte*>(request.sge.addr), request.sge.length};
    submissions_.write(slot, [&](WorkRequest& first) {
        fill_inline(first, request, payload);
        return head_of(request).as_inline().word();
    });
    write_continuations(payload, slot, slots);
}

/// As write_ordinary(), for a burst that begins with an inline payload. `ahead` slots are written already.
[[gnu::noinline]] SessionCore::Written SessionCore::write_mixed(std::span<const WorkRequest> requests,
                                                                std::size_t ahead) noexcept {
    const std::size_t most = std::min(requests.size(), ordinary_room(requests.size()));
    Written result;
    std::uint64_t looked_up = ~std::uint64_t{0};
    QpAccount* mine = nullptr;
    for (; result.requests < most; ++result.requests) {
        const WorkRequest& request = requests[result.requests];
        const RequestHead head = head_of(request);
        if (!head.is_plain_with_sge(RequestHead::kReplyInLine)) [[unlikely]] {
            break;
        }
        if (head.qp_bits() != looked_up) {
            mine = known(head, 0);
            looked_up = head.qp_bits();
        }
        if (mine == nullptr || !mine->admits(head) || (kAdmission && mine->sends() >= mine->send_depth()))
            [[unlikely]] {
            break;
        }
        const bool is_inline = (head.flags() & kInline) != 0;
        if (is_inline && (request.sge.length > mine->inline_max() || !head.is_one_of(kInlineOpcodes))) [[unlikely]] {
            break;
        }
        const std::size_t slot = ahead + result.slots;
        const std::uint32_t slots = is_inline ? slots_for_inline(request.sge.length) : 1;
        if (reserve_slots(slot + slots) < slot + slots) [[unlikely]] {
            break;
        }
        if (is_inline) {
            write_payload(request, slot, slots);
        } else {
            submissions_.write(slot, request);
        }
        mine->count_sends(kAdmission);
        result.slots += slots;
    }
    count_written(requests.first(result.requests));
    return result;
}

/// Writes one request with kInline.
[[gnu::noinline]] SessionCore::Written SessionCore::write_inline(const WorkRequest& request,
                                                                 std::size_t ahead) noexcept {
    const std::uint32_t length = request.sge.length;
    const std::uint32_t slots = slots_for_inline(length);
    const bool fits =
        allows(kInlineOpcodes, request.opcode) && (request.num_sge == 1 || (request.num_sge == 0 && length == 0));
    const Refusal refusal = fits ? admit_inline(request, length, slots, ahead)
                                 : admit_own(request, ahead);  // refuses it: at the latest, the flag does not fit
    if (refusal != Refusal::none) {
        count_refused(refusal);
        return {.refusal = refusal};
    }
    count_accepted(request);
    write_payload(request, ahead, slots);
    return {.requests = 1, .slots = slots};
}

/// Takes or refuses a single request that admit_own() has refused. That function refuses each request with kInline:
/// asking for the flag only here costs the other requests nothing.
[[gnu::noinline]] Refusal SessionCore::refused(const WorkRequest& request, Refusal refusal) noexcept {
    if ((request.flags & kInline) == 0) {
        count_refused(refusal);
        return refusal;
    }
    const Written written = write_inline(request, 0);
    publish({&request, written.requests}, written.slots);
    return written.refusal;
}

/// Publishes the requests, which were written into the next `slots` slots.
[[gnu::always_inline]] inline void SessionCore::publish(std::span<const WorkRequest> requests,
                                                        std::size_t slots) noexcept {
    if (requests.empty()) {
        return;
    }
    if (kStageLatency && accounts_.accepted() >= next_sample_) [[unlikely]] {
        follow_one_of(requests);
    }
    submissions_.commit(slots);
    submitted();
}

/// The part of try_submit() for a burst with other requests than ordinary ones. The first `written` requests are
/// written already.
[[gnu::always_inline]] inline Submitted SessionCore::submit_others(std::span<const WorkRequest> requests,
                                                                   std::size_t written) noexcept {
    Submitted result{.accepted = written};
    std::size_t slots = written;
    while (result.accepted < requests.size()) {
        const std::span<const WorkRequest> rest = requests.subspan(result.accepted);
        const WorkRequest& request = rest.front();
        if ((request.flags & kInline) != 0) [[unlikely]] {
            Written some = write_mixed(rest, slots);
            if (some.requests == 0) {
                some = write_inline(request, slots);
            }
            result.accepted += some.requests;
            slots += some.slots;
            if (result.refusal = some.refusal; result.refusal != Refusal::none) {
                break;
            }
            continue;
        }
        const RequestHead head = head_of(request);
        const QpAccount& account = accounts_.of(request.qp);
        const std::size_t n = account.admits(head)         ? write_ordinary(rest, slots)
                              : account.admits_short(head) ? write_short(rest, slots)
                                                           : 0;
        if (n != 0) [[likely]] {
            result.accepted += n;
            slots += n;
            continue;
        }
        result.refusal = admit_own(request, slots);
        if (result.refusal != Refusal::none) {
            count_refused(result.refusal);
            break;
        }
        count_accepted(request);
        submissions_.write(slots, [&](WorkRequest& slot) {
            std::memcpy(static_cast<void*>(&slot), &request, offsetof(WorkRequest, qp));
            if (summing_) [[unlikely]] {
                slot.payload_sum = sum(own_sges(request));
            }
            return head.word();
        });
        ++result.accepted;
        ++slots;
    }
    publish(requests.first(result.accepted), slots);
    return result;
}

[[gnu::always_inline]] inline Submitted SessionCore::try_submit(std::span<const WorkRequest> requests) noexcept {
    if (requests.size() == 1) {
        const Refusal refusal = try_submit(requests.front());
        return {refusal == Refusal::none, refusal};
    }
    submissions_.prefetch();
    // Write all requests before publishing them. The worker then sees them together, and rings one doorbell (D4).
    const std::size_t ordinary = write_ordinary(requests, 0);
    if (ordinary < requests.size()) {
        return submit_others(requests, ordinary);
    }
    publish(requests, ordinary);
    return {ordinary, Refusal::none};
}

[[gnu::always_inline]] inline Refusal SessionCore::try_submit(const WorkRequest& request,
                                                              std::span<const Sge> sges) noexcept {
    if (sges.size() > kSgesMax) {
        count_refused(Refusal::too_many_sges);
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
        count_refused(refusal);
        return refusal;
    }
    count_accepted(request);
    WorkRequest first = request;
    first.num_sge = static_cast<std::uint8_t>(num_sge);
    if (num_sge > 0) {
        first.sge = sges[0];
    } else if (!is_local(request.opcode)) {  // a bind has its operands in the place of `sge`
        first.sge.length = 0;
    }
    if (summing_) [[unlikely]] {
        first.payload_sum = sum(sges);
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

[[gnu::always_inline]] inline Refusal SessionCore::try_submit_inline(const WorkRequest& request,
                                                                     std::span<const std::byte> payload) noexcept {
    if (payload.size() > kInlineMax) {
        count_refused(Refusal::inline_too_long);
        return Refusal::inline_too_long;
    }
    submissions_.prefetch();
    const auto length = static_cast<std::uint32_t>(payload.size());
    const std::uint32_t slots = slots_for_inline(length);
    const Refusal refusal = admit_inline(request, length, slots);
    if (refusal != Refusal::none) {
        count_refused(refusal);
        return refusal;
    }
    count_accepted(request);
    const auto fill = [&](WorkRequest& first) {
        fill_inline(first, request, payload);
        sample(first, request.opcode);
        return head_of(request).as_inline().word() | (slots == 1 ? expect_reply(request) : 0);
    };
    if (slots == 1) [[likely]] {
        (void)submissions_.try_push(fill);  // admit() has reserved the slot
    } else {
        submissions_.write(0, fill);
        write_continuations(payload, 0, slots);
        submissions_.commit(slots);
    }
    submitted();
    return Refusal::none;
}

// ---- The calls of Session ----

Refusal SessionCore::submit_of_pool(const WorkRequest& request) noexcept {
    return try_submit(request);
}

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

}  // namespace pollcore
