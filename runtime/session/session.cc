// The application's side of a session: admission, submission and polling.
#include "pollcore/session.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "session/layout.hpp"
#include "session/refused_completion.hpp"

namespace pollcore {

Session::Session(std::shared_ptr<SessionHost> host, std::uint32_t id, std::uint32_t worker, void* block,
                 const SessionLayout& layout, const SessionWaking& waking)
    : submissions_(at_offset<void>(block, layout.submissions()), layout.submission_slots),
      completions_(at_offset<void>(block, layout.completions()), layout.completion_ring_slots()),
      header_(session_header(block)),
      records_(at_offset<QpRecord>(block, layout.records())),
      retired_(at_offset<std::atomic<std::uint64_t>>(block, layout.retired())),
      accounts_(layout.qps_max),
      qps_mask_(layout.qps_max - 1),
      completion_slots_(layout.completion_slots),
      wide_(layout.wide),
      worker_sleeps_(layout.worker_sleeps),
      srq_records_(at_offset<SrqRecord>(block, layout.srq_records())),
      srq_accounts_(kSrqsMax),
      waking_(waking),
      id_(id),
      worker_(worker),
      host_(std::move(host)) {}

Session::~Session() { destroy(); }

Session::Session(Session&& other) noexcept { *this = std::move(other); }

Session& Session::operator=(Session&& other) noexcept {
    if (this == &other) {
        return *this;
    }
    destroy();
    submissions_ = std::move(other.submissions_);
    completions_ = std::move(other.completions_);
    header_ = std::exchange(other.header_, nullptr);
    records_ = other.records_;
    retired_ = other.retired_;
    accounts_ = std::move(other.accounts_);
    qps_mask_ = other.qps_mask_;
    completion_slots_ = other.completion_slots_;
    wide_ = other.wide_;
    worker_sleeps_ = other.worker_sleeps_;
    waking_ = other.waking_;
    accepted_ = other.accepted_;
    retired_seen_ = other.retired_seen_;
    refused_ = other.refused_;
    srq_records_ = other.srq_records_;
    srq_accounts_ = std::move(other.srq_accounts_);
    id_ = other.id_;
    worker_ = other.worker_;
    closed_ = other.closed_;
    untaken_slots_ = other.untaken_slots_;
    untaken_requests_ = other.untaken_requests_;
    retired_told_ = other.retired_told_;
    end_told_ = other.end_told_;
    wants_slots_ = other.wants_slots_;
    host_ = std::move(other.host_);
#ifndef NDEBUG
    owner_ = 0;  // a moved session may change its thread
#endif
    return *this;
}

void Session::destroy() noexcept {
    if (header_ == nullptr) {
        return;
    }
    close();
    header_ = nullptr;
    host_->release_session(id_);
    host_.reset();
}

void Session::close() noexcept {
    if (header_ != nullptr && !closed_) {
        closed_ = true;
        host_->close_session(id_);
    }
}

void Session::assert_owner() noexcept {
#ifndef NDEBUG
    static std::atomic<std::uint64_t> next_id{1};
    thread_local const std::uint64_t self = next_id.fetch_add(1, std::memory_order_relaxed);
    if (owner_ == 0) {
        owner_ = self;
    }
    POLLCORE_CHECK(owner_ == self, "a session is used by one thread");
#endif
}

// ---- Admission (I3): the one place on this side that decides whether a work request is taken. ----

[[gnu::always_inline]] inline Session::QpAccount& Session::account(QpHandle qp) noexcept {
    QpAccount& account = accounts_[qp.index];
    if (account.generation != qp.generation) [[unlikely]] {
        // The index was given to another queue pair: nothing of the old one is in flight any more.
        account = QpAccount{.generation = qp.generation};
    }
    return account;
}

Session::SrqAccount& Session::account(SrqHandle srq) noexcept {
    SrqAccount& account = srq_accounts_[srq.index];
    if (account.generation != srq.generation) {
        account = SrqAccount{.generation = srq.generation};
    }
    return account;
}

[[gnu::noinline]] void Session::refresh_retired(QpHandle qp) noexcept {
    QpAccount& mine = account(qp);
    // Acquire, with the release in the worker's publication: buffers of retired requests are free.
    const auto now = RetiredWord::unpack(retired_[qp.index].load(std::memory_order_acquire));
    if (now.generation != qp.generation) {
        return;  // reset meanwhile
    }
    mine.send_outstanding -= now.count - mine.retired_seen;
    mine.retired_seen = now.count;
}

[[gnu::always_inline]] inline bool Session::completion_room() noexcept {
    // Taken completions count only once the worker can know that their slots are free.
    return accepted_ - retired_seen_ - (completions_.published() >> wide_) < completion_slots_ || refresh_completion_room();
}

[[gnu::noinline]] bool Session::refresh_completion_room() noexcept {
    completions_.publish();
    retired_seen_ = header_->retired.load(std::memory_order_acquire);
    return accepted_ - retired_seen_ - (completions_.published() >> wide_) < completion_slots_;
}

// Inlined, so that each way of submitting has only those checks that it can fail.
[[gnu::always_inline]] inline Refusal Session::admit(const WorkRequest& request, std::uint32_t num_sge, std::uint32_t inline_length,
                       std::uint32_t slots, std::size_t ahead) noexcept {
    if (closed_ || header_ == nullptr) [[unlikely]] {
        return Refusal::session_closed;
    }
    if (request.opcode == Opcode::srq_recv) [[unlikely]] {
        return inline_length != 0 ? Refusal::bad_flags : admit_shared(request, num_sge, slots, ahead);
    }
    if (request.qp.index > qps_mask_ || !request.qp.valid()) [[unlikely]] {
        return Refusal::stale_handle;
    }
    QpRecord& record = records_[request.qp.index];
    // Acquire, with the worker's release: the limits belong to this status.
    const auto qp = QpStatusWord::unpack(record.status.load(std::memory_order_acquire));
    if (qp.generation != request.qp.generation || qp.state == QpState::closed) [[unlikely]] {
        return Refusal::stale_handle;
    }
    if (qp.state == QpState::error) [[unlikely]] {
        return Refusal::qp_in_error;
    }
    if (num_sge > qp.sges_max) [[unlikely]] {
        return Refusal::too_many_sges;
    }
    const auto limits = QpLimitsWord::unpack(record.limits.load(std::memory_order_relaxed));
    QpAccount& mine = account(request.qp);
    if (is_recv(request.opcode)) {
        if (!(qp.flags & QpStatusWord::kReceives)) [[unlikely]] {
            return Refusal::not_receiver;
        }
        if (request.flags != 0 || inline_length != 0) [[unlikely]] {
            return Refusal::bad_flags;
        }
        if (mine.recv_outstanding >= limits.recv_depth) {
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
        if (is_atomic(request.opcode) && request.remote_addr % sizeof(std::uint64_t) != 0) [[unlikely]] {
            return Refusal::misaligned_atomic;
        }
        if (qp.state != QpState::ready) [[unlikely]] {
            return Refusal::not_connected;
        }
        if (inline_length > qp.inline_max) [[unlikely]] {
            return Refusal::inline_too_long;
        }
        if (mine.send_outstanding >= limits.send_depth) {
            if (limits.send_depth == 0) {
                return Refusal::no_share;
            }
            refresh_retired(request.qp);
            if (mine.send_outstanding >= limits.send_depth) {
                return Refusal::send_queue_full;
            }
        }
    }
    if (slots > submissions_.capacity()) [[unlikely]] {
        return inline_length > 0 ? Refusal::inline_too_long : Refusal::too_many_sges;
    }
    return admit_slots(slots, ahead);
}

/// What every request needs: the slots of its own and one for its completion.
[[gnu::always_inline]] inline Refusal Session::admit_slots(std::uint32_t slots, std::size_t ahead) noexcept {
    if (!completion_room()) {
        return Refusal::completion_ring_full;
    }
    if (submissions_.reserve(ahead + slots) < ahead + slots) {
        wants_slots_ = true;
        return Refusal::submission_ring_full;
    }
    return Refusal::none;
}

[[gnu::noinline]] Refusal Session::admit_shared(const WorkRequest& request, std::uint32_t num_sge, std::uint32_t slots,
                                                std::size_t ahead) noexcept {
    const SrqHandle handle = request.srq;
    if (handle.index >= kSrqsMax || !handle.valid()) {
        return Refusal::stale_handle;
    }
    // Acquire, with the worker's release: from here on the queue is there.
    const auto srq = SrqStatusWord::unpack(srq_records_[handle.index].status.load(std::memory_order_acquire));
    if (srq.generation != handle.generation) {
        return Refusal::stale_handle;
    }
    if (num_sge > srq.sges_max || slots > submissions_.capacity()) {
        return Refusal::too_many_sges;
    }
    if (request.flags != 0) {
        return Refusal::bad_flags;
    }
    if (account(handle).outstanding >= srq.depth) {
        return Refusal::srq_full;
    }
    return admit_slots(slots, ahead);
}

[[gnu::always_inline]] inline void Session::count_accepted(const WorkRequest& request) noexcept {
    ++accepted_;
    if (request.opcode == Opcode::srq_recv) [[unlikely]] {
        ++account(request.srq).outstanding;
        return;
    }
    QpAccount& mine = account(request.qp);
    ++(is_recv(request.opcode) ? mine.recv_outstanding : mine.send_outstanding);
}

// ---- Submission ----

// A worker that never sleeps costs no more than the question.
[[gnu::always_inline]] inline void Session::submitted() noexcept {
    if (worker_sleeps_) [[unlikely]] {
        wake_worker();
    }
}

[[gnu::noinline]] void Session::wake_worker() noexcept {
    if (header_->worker_sleep.take()) {
        // Relaxed: for a statistic; the worker reads it after it has seen the event.
        header_->woken_at.store(cycles_now(), std::memory_order_relaxed);
        signal_event(waking_.worker_fd);
    }
}

Refusal Session::try_submit(const WorkRequest& request) noexcept {
    assert_owner();
    submissions_.prefetch();
    const Refusal refusal =
        request.num_sge > 1 ? Refusal::too_many_sges : admit(request, request.num_sge, 0, 1);
    if (refusal != Refusal::none) {
        ++refused_;
        return refusal;
    }
    count_accepted(request);
    (void)submissions_.try_push(request);  // admit() reserved the slot
    submitted();
    return Refusal::none;
}

Submitted Session::try_submit(std::span<const WorkRequest> requests) noexcept {
    assert_owner();
    submissions_.prefetch();
    Submitted result;
    for (const WorkRequest& request : requests) {
        // Written and not yet published: the worker sees all of them at once, and rings one doorbell.
        const std::size_t ahead = result.accepted;
        result.refusal = request.num_sge > 1 ? Refusal::too_many_sges : admit(request, request.num_sge, 0, 1, ahead);
        if (result.refusal != Refusal::none) {
            ++refused_;
            break;
        }
        count_accepted(request);
        submissions_.write(ahead, request);
        ++result.accepted;
    }
    if (result.accepted > 0) {
        submissions_.commit(result.accepted);
        submitted();
    }
    return result;
}

Refusal Session::try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept {
    assert_owner();
    if (sges.size() > kSgesMax) {
        ++refused_;
        return Refusal::too_many_sges;
    }
    submissions_.prefetch();
    const auto num_sge = static_cast<std::uint32_t>(sges.size());
    const std::uint32_t slots = slots_for_sges(num_sge);
    const Refusal refusal = admit(request, num_sge, 0, slots);
    if (refusal != Refusal::none) {
        ++refused_;
        return refusal;
    }
    count_accepted(request);
    WorkRequest first = request;
    first.num_sge = static_cast<std::uint8_t>(num_sge);
    if (num_sge > 0) {
        first.sge = sges[0];  // else a bind's operands stand there
    }
    submissions_.write(0, first);
    for (std::uint32_t slot = 1, next = 1; slot < slots; ++slot) {
        WorkRequestContinuation more;
        for (std::size_t i = 0; i < WorkRequestContinuation::kSges && next < num_sge; ++i, ++next) {
            std::memcpy(more.payload.data() + i * sizeof(Sge), &sges[next], sizeof(Sge));
        }
        submissions_.write(slot, std::bit_cast<WorkRequest>(more));
    }
    submissions_.commit(slots);
    submitted();
    return Refusal::none;
}

Refusal Session::try_submit_inline(const WorkRequest& request, std::span<const std::byte> payload) noexcept {
    assert_owner();
    if (payload.size() > kInlineMax) {
        ++refused_;
        return Refusal::inline_too_long;
    }
    submissions_.prefetch();
    const bool takes_inline = allows(kInlineOpcodes, request.opcode);
    const auto length = static_cast<std::uint32_t>(payload.size());
    const std::uint32_t slots = slots_for_inline(length);
    const Refusal refusal = !takes_inline ? Refusal::bad_opcode : admit(request, 0, length, slots);
    if (refusal != Refusal::none) {
        ++refused_;
        return refusal;
    }
    count_accepted(request);
    // In place, as below: a changed copy would have to leave the store buffer before it could be copied again.
    submissions_.write(0, request);
    WorkRequest& first = submissions_.slot(0);
    first.flags = static_cast<std::uint8_t>(request.flags | kInline);
    first.num_sge = 0;
    first.sge.length = length;
    if (length <= WorkRequest::kOwnPayload) {
        std::copy(payload.begin(), payload.end(), reinterpret_cast<std::byte*>(&first) + offsetof(WorkRequest, swap));
    }
    for (std::uint32_t slot = 1; slot < slots; ++slot) {
        const std::span<const std::byte> rest = payload.subspan((slot - 1) * WorkRequestContinuation::kPayload);
        std::memcpy(static_cast<void*>(&submissions_.slot(slot)), rest.data(),
                    std::min(WorkRequestContinuation::kPayload, rest.size()));
    }
    submissions_.commit(slots);
    submitted();
    return Refusal::none;
}

// ---- Completion ----

[[gnu::noinline]] void Session::settle_shared(const Completion& completion) noexcept {
    SrqAccount& mine = srq_accounts_[completion.srq.index % kSrqsMax];
    if (mine.generation == completion.srq.generation) {
        --mine.outstanding;
    }
}

[[gnu::always_inline]] inline void Session::settle(const Completion& completion) noexcept {
    if (completion.srq.valid()) [[unlikely]] {
        return settle_shared(completion);
    }
    QpAccount& mine = accounts_[completion.qp.index & qps_mask_];
    if (mine.generation == completion.qp.generation) [[likely]] {
        --(completion.from_recv_queue() ? mine.recv_outstanding : mine.send_outstanding);
    }
}

std::size_t Session::poll(std::span<Completion> out) noexcept { return take(out); }
std::size_t Session::poll(std::span<WideCompletion> out) noexcept { return take(out); }

// The two slots of a wide completion are published at once, so the first tells of both.
template <class Record>
[[gnu::always_inline]] inline std::size_t Session::take(std::span<Record> out) noexcept {
    if (header_ == nullptr) [[unlikely]] {
        return 0;
    }
    assert_owner();
    const std::uint32_t wide = wide_;
    std::size_t n = 0;
    while (n < out.size() && completions_.ready(n << wide)) {
        static_cast<Completion&>(out[n]) = completions_.slot(n << wide);
        if constexpr (std::is_same_v<Record, WideCompletion>) {
            static_cast<CompletionExtension&>(out[n]) =
                wide != 0 ? std::bit_cast<CompletionExtension>(completions_.slot((n << wide) + 1)) : CompletionExtension{};
        }
        settle(out[n]);
        ++n;
    }
    if (n > 0) {
        completions_.release(n << wide);
        submissions_.prefetch();  // what comes is often answered
        return n;
    }
    // Acquire, with the worker's release when it lets the session go: what it took, and the last completions.
    if (header_->closed.load(std::memory_order_acquire) != 0 && !completions_.ready()) [[unlikely]] {
        return complete_untaken(out);
    }
    return 0;
}

// Requests that were accepted while the runtime stopped on another thread: no worker will take them (I1).
template <class Record>
[[gnu::cold, gnu::noinline]] std::size_t Session::complete_untaken(std::span<Record> out) noexcept {
    closed_ = true;
    const std::uint64_t untaken = submissions_.unreleased();
    std::size_t n = 0;
    while (n < out.size() && untaken_slots_ < untaken) {
        const WorkRequest& request = submissions_.unreleased_slot(untaken_slots_);
        untaken_slots_ += slots_of(request);
        ++untaken_requests_;
        out[n] = Record{};
        Completion& completion = out[n++];
        completion = refused_completion(request, Status::session_closed);
        settle(completion);
    }
    return n;
}

std::uint32_t Session::retired(QpHandle qp) noexcept {
    if (header_ == nullptr || qp.index > qps_mask_) {
        return 0;
    }
    if (RetiredWord::unpack(retired_[qp.index].load(std::memory_order_acquire)).generation == qp.generation) {
        refresh_retired(qp);
    }
    const QpAccount& mine = accounts_[qp.index];
    return mine.generation == qp.generation ? mine.retired_seen : 0;
}

QpState Session::state(QpHandle qp) const noexcept {
    if (header_ == nullptr || qp.index > qps_mask_) {
        return QpState::closed;
    }
    const auto word = QpStatusWord::unpack(records_[qp.index].status.load(std::memory_order_acquire));
    return word.generation == qp.generation ? word.state : QpState::closed;
}

Status Session::cause(QpHandle qp) const noexcept {
    if (header_ == nullptr || qp.index > qps_mask_) {
        return Status::success;
    }
    const auto word = QpStatusWord::unpack(records_[qp.index].status.load(std::memory_order_acquire));
    return word.generation == qp.generation ? word.cause : Status::qp_closed;
}

SessionFigures Session::figures() noexcept {
    if (header_ != nullptr) {
        retired_seen_ = header_->retired.load(std::memory_order_acquire);
    }
    return {.accepted = accepted_, .completed = (completions_.released() >> wide_) + untaken_requests_, .retired = retired_seen_, .refused = refused_};
}

}  // namespace pollcore
