#include "worker/worker_session.hpp"

#include <bit>

#include "base/event_fd.hpp"
#include "session/refused_completion.hpp"

namespace pollcore {
namespace {

// Usually a step takes at least one request from the ring of a closing session. Then the ring is empty after at most as
// many steps as it has slots. These additional steps allow for steps that take none (ClientShare).
constexpr std::uint64_t kStepsToDrainMore = 64;

}  // namespace

WorkerSession::WorkerSession(void* block, const SessionLayout& layout, const Options& options)
    : submissions_(at_offset<void>(block, layout.submissions()), layout.submission_slots),
      completions_(at_offset<void>(block, layout.completions()), layout.completion_ring_slots()),
      completion_slots_(layout.completion_slots),
      options_(options),
      wide_(layout.wide),
      tells_(options.application_fd >= 0),
      header_(session_header(block)),
      records_(at_offset<QpRecord>(block, layout.records())),
      retired_counts_(at_offset<std::atomic<std::uint64_t>>(block, layout.retired())),
      srq_records_(at_offset<SrqRecord>(block, layout.srq_records())),
      stages_(at_offset<SessionStages>(block, layout.stages())),
      trace_(&at_offset<SessionTrace>(block, layout.trace())->worker),
      shares_(layout.qps_max) {}

// ---- Requests ----

void WorkerSession::open_share(WorkerQp& qp, QpHandle handle, std::uint32_t send_depth,
                               std::uint32_t recv_depth) noexcept {
    shares_[handle.index] = Share(qp, handle, send_depth, recv_depth);
    const RetiredWord none{.generation = handle.generation, .count = 0};
    retired_counts_[handle.index].store(none.pack(), std::memory_order_relaxed);
}

[[gnu::cold]] void WorkerSession::give_up(Turn& turn, Share& share, const WorkRequest& request,
                                          Status status) noexcept {
    share.end_sends(1);
    --in_flight_;
    unsignaled_ -= (request.flags & kSignaled) == 0;
    refuse(turn, request, status);
}

[[gnu::noinline]] void WorkerSession::count_throttled(std::size_t taken) noexcept {
    if (const std::uint64_t head = submissions_.released() + taken + 1; throttled_at_ != head) {
        throttled_at_ = head;
        // Relaxed: only this worker writes this statistic. A hostile process that overwrites it misleads only itself.
        header_->throttled.store(++throttled_, std::memory_order_relaxed);
    }
}

[[gnu::noinline]] void WorkerSession::begin_sample(Turn& turn, InFlightEntry& entry,
                                                   std::uint32_t submitted_at) noexcept {
    const std::uint32_t now = turn.sample_clock();
    stages_->submission_ring.add(submitted_at, now);
    if (!sampling_) {
        sampling_ = true;
        submitted_at_ = submitted_at;
        sampled_at_ = now;
        entry.sample();
    }
}

/// Ends the measurement. Returns the value for Completion::sampled_at.
[[gnu::noinline]] std::uint32_t WorkerSession::end_sample(Turn& turn, bool success, std::uint32_t qp,
                                                          Opcode opcode) noexcept {
    sampling_ = false;
    if (!success) {
        return 0;  // the duration of a failed request is not recorded
    }
    const std::uint32_t now = turn.sample_clock();
    stages_->device.add(sampled_at_, now);
    trace_->note({submitted_at_ | std::uint64_t{sampled_at_} << 32, now | 1u,
                  qp | std::uint64_t{static_cast<std::uint8_t>(opcode)} << 32});
    return now | 1;
}

// ---- Completions ----

/// The session looks for the answer in the request's line as well. kNotInLine tells the session that it can stop.
[[gnu::noinline]] void WorkerSession::end_reply(Completion& completion) noexcept {
    reply_at_ = 0;
    completion.flags |= kNotInLine;
}

[[gnu::cold]] void WorkerSession::refuse(Turn& turn, const WorkRequest& request, Status status) noexcept {
    turn.counters.refused_requests.add();
    refused_.add();
    Completion completion = refused_completion(request, status);
    if ((request.flags & RequestHead::kReplyInLine) != 0 && request.opcode < Opcode::recv) {
        end_reply(completion);
    }
    publish(turn, completion, nullptr);
}

// Takes the completion by value. With a reference, the caller would have to store every completion in memory first.
[[gnu::noinline]] void WorkerSession::publish_wide(Turn& turn, Completion completion, const ibv_wc* datagram) noexcept {
    if (completions_.reserve(2) < 2) [[unlikely]] {
        break_off(turn);
        return;
    }
    completions_.write(0, [&](Completion& slot) { return write_slot(slot, completion); });
    CompletionExtension more;
    if (datagram != nullptr) {
        more.src_qp = datagram->src_qp;
        more.slid = datagram->slid;
        more.pkey_index = datagram->pkey_index;
        more.sl = datagram->sl;
        more.dlid_path_bits = datagram->dlid_path_bits;
    }
    // Turn::device_time() belongs to the device's completion that is being routed. A completion that the runtime itself
    // makes meanwhile has no device time (D37).
    if (options_.device_time && completion.ok() && (completion.flags & kByRuntime) == 0) {
        more.device_time = turn.device_time();
    }
    completions_.write(1, std::bit_cast<Completion>(more));
    completions_.commit(2);
    delivered(turn, 1);
}

// ---- Sleepers ----

bool WorkerSession::wake_application() noexcept {
    if (!header_->application_sleep.take()) {
        return false;
    }
    options_.application_socket ? signal_socket(options_.application_fd) : signal_event(options_.application_fd);
    return true;
}

// ---- The session's end ----

[[gnu::cold]] void WorkerSession::break_off(Turn& turn) noexcept {
    if (broken_) {
        return;
    }
    broken_ = true;
    turn.counters.broken_sessions.add();
    turn.answers.say(AnswerKind::session_broken, index_, options_.id);
}

void WorkerSession::begin_closing(std::uint64_t command, std::uint64_t step, bool abandoned) noexcept {
    closing_ = true;
    closing_since_ = step;
    closing_command_ = command;
    broken_ = broken_ || abandoned;
}

// The queue pairs of a closing session have been retired already, so only requests in the session's ring can delay the
// session's end.
bool WorkerSession::drained(std::uint64_t step) noexcept {
    // The worker does not wait for ever: a partly published request may never become complete, and an application may
    // go on submitting.
    if (submissions_.ready() && step - closing_since_ > submissions_.capacity() + kStepsToDrainMore) [[unlikely]] {
        broken_ = true;
    }
    return broken_ || (in_flight_ == 0 && !submissions_.ready());
}

void WorkerSession::detach() noexcept {
    submissions_.publish();
    header_->closed.store(SessionHeader::kDetached, std::memory_order_release);
    if (options_.application_fd >= 0) {
        (void)wake_application();
    }
}

}  // namespace pollcore
