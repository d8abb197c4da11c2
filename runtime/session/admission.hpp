// Decides whether a request is taken (I3). admit() makes all checks. When it lets a send-queue request through, it
// stores the status and limits of the queue pair in the queue pair's account. As long as that status does not change,
// admits_at_once() and ordinary_room() decide on further requests of the same kind (D8). These functions are inlined
// into each submitting call.
#pragma once

#include <algorithm>

#include "base/bare.hpp"
#include "base/planted.hpp"
#include "session/session_core.hpp"

namespace pollcore {

/// The result of a call with `n` requests or completions on an object without a session.
constexpr Submitted without_session(std::size_t n) noexcept {
    return {0, n == 0 ? Refusal::none : Refusal::session_closed};
}

// ---- Room ----

[[gnu::always_inline]] inline bool SessionCore::completion_room() noexcept {
    // A taken completion makes room only after the worker can know that the completion's slot is free.
    if (accounts_.room(inbox_.given_back()) != 0) [[likely]] {
        return true;
    }
    refresh_room();
    return accounts_.room(inbox_.given_back()) != 0;
}

/// Calls RingProducer::reserve. If one of the reserved slots has an awaited answer, saves the answer first.
[[gnu::always_inline]] inline std::size_t SessionCore::reserve_slots(std::size_t wanted) noexcept {
    const std::size_t n = submissions_.reserve(wanted);
    inbox_.make_way(n);
    return n;
}

/// Checks the room that every request needs: slots for itself, and a slot for its completion.
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

/// Returns how many of `wanted` requests have room in both rings. Returns 0 if the session is closed.
[[gnu::always_inline]] inline std::size_t SessionCore::ordinary_room(std::size_t wanted) noexcept {
    if ((attention_ & kUnusable) != 0) [[unlikely]] {
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

// ---- The fields of a request ----

/// For a plain request (RequestHead::is_plain): returns the account of its queue pair if three conditions hold. The
/// queue pair has the same status as when admit() last let a send-queue request through, it allows inline_length inline
/// bytes, and it has room for another request. Else returns null.
[[gnu::always_inline]] inline QpAccount* SessionCore::known(RequestHead head, std::uint32_t inline_length) noexcept {
    const std::uint32_t index = head.qp_index();
    if (index > accounts_.qps_mask()) [[unlikely]] {
        return nullptr;
    }
    QpAccount& mine = accounts_.at(index);
    const bool as_it_was = mine.knows(accounts_.status(index)) && head.qp_generation() == mine.generation() &&
                           inline_length <= mine.inline_max() && (!kAdmission || mine.sends() < mine.send_depth());
    return as_it_was ? &mine : nullptr;
}

[[gnu::always_inline]] inline bool SessionCore::admits_at_once(RequestHead head, std::uint32_t inline_length,
                                                               std::uint64_t bytes) noexcept {
    const QpAccount* const mine = known(head, inline_length);
    return mine != nullptr &&
           (mine->admits(head) || (mine->admits_short(head) && bytes <= accounts_.message_max(head.qp_index())));
}

// Inlined, so that each submitting call has only the checks that can fail in that call.
[[gnu::always_inline]] inline Refusal SessionCore::admit(const WorkRequest& request, std::uint32_t num_sge,
                                                         std::uint32_t inline_length, std::uint64_t bytes,
                                                         std::uint32_t slots, std::size_t ahead,
                                                         unsigned refused_flags) noexcept {
    if ((attention_ & kUnusable) != 0) [[unlikely]] {
        return Refusal::session_closed;
    }
    const RequestHead head = head_of(request);
    if (slots == 1 && head.is_plain(refused_flags | RequestHead::kReplyInLine) &&
        admits_at_once(head, inline_length, bytes)) [[likely]] {
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
    if (qp.state >= QpState::error) [[unlikely]] {
        if (qp.state != QpState::error || (attention_ & kFlushInError) == 0) {
            return qp.state == QpState::error   ? Refusal::qp_in_error
                   : qp.state == QpState::reset ? Refusal::not_connected
                                                : Refusal::stale_handle;
        }
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
        if ((request.flags & (~(kFence | kSignaled | kSolicited | kInline) | refused_flags)) != 0) [[unlikely]] {
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
        if (is_atomic(request.opcode) && (request.remote_addr % sizeof(std::uint64_t) != 0 || num_sge != 1 ||
                                          bytes != sizeof(std::uint64_t))) [[unlikely]] {
            return Refusal::misaligned_atomic;
        }
        if (qp.state == QpState::init) [[unlikely]] {
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
            mine.learn(status, limits.opcodes, limits.send_depth);  // from here on admits_at_once() knows this status
        }
    }
    if (slots > submissions_.capacity()) [[unlikely]] {
        return inline_length > 0 ? Refusal::inline_too_long : Refusal::too_many_sges;
    }
    return admit_slots(slots, ahead);
}

/// Admits a request without further SGEs: it has request.sge, or no SGE.
[[gnu::always_inline]] inline Refusal SessionCore::admit_own(const WorkRequest& request, std::size_t ahead) noexcept {
    return request.num_sge == 1 ? admit(request, 1, 0, request.sge.length, 1, ahead)
                                : admit_without_sge(request, ahead);
}

/// Admits a request with an inline payload of `length` bytes, whether or not it has kInline.
[[gnu::always_inline]] inline Refusal SessionCore::admit_inline(const WorkRequest& request, std::uint32_t length,
                                                                std::uint32_t slots, std::size_t ahead) noexcept {
    if (!allows(kInlineOpcodes, request.opcode)) {
        return Refusal::bad_opcode;
    }
    return admit(request, 0, length, length, slots, ahead, 0);
}

[[gnu::always_inline]] inline void SessionCore::count_refused(Refusal cause) noexcept {
    refusals_.by_cause[static_cast<std::size_t>(cause)].add();
    summing_ = false;
}

}  // namespace pollcore
