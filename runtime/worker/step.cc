// The loop body of a worker.
#include <algorithm>

#include "worker/worker.hpp"

namespace pollcore {
namespace {

template <class T>
std::unique_ptr<std::byte[], T> make_ring_memory(std::size_t bytes) {
    return std::unique_ptr<std::byte[], T>(
        static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kCacheLine})));
}

}  // namespace

WorkerSession::WorkerSession(void* block, const SessionLayout& layout)
    : submissions(at_offset<void>(block, layout.submissions()), layout.submission_slots),
      completions(at_offset<void>(block, layout.completions()), layout.completion_slots),
      completion_slots(layout.completion_slots),
      header(session_header(block)),
      records(at_offset<QpRecord>(block, layout.records())),
      retired_counts(at_offset<std::atomic<std::uint32_t>>(block, layout.retired())),
      shares(std::make_unique<Share[]>(layout.qps_max)) {}

Worker::Worker(const WorkerOptions& options)
    : options_(options),
      qps_mask_(options.qps_max - 1),
      qps_(std::make_unique<WorkerQp*[]>(options.qps_max)),
      wrs_(std::make_unique<ibv_send_wr[]>(kChainWrs)),
      recv_wrs_(std::make_unique<ibv_recv_wr[]>(kChainWrs)),
      sges_(std::make_unique<ibv_sge[]>(kChainSges)),
      inline_(std::make_unique<std::byte[]>(kChainInline)),
      wcs_(std::make_unique<ibv_wc[]>(options.complete_burst)),
      command_memory_(make_ring_memory<AlignedDelete>(ring_bytes<Command>(kCommandSlots))),
      answer_memory_(make_ring_memory<AlignedDelete>(ring_bytes<Answer>(kAnswerSlots))) {
    format_ring<Command>(command_memory_.get(), kCommandSlots);
    format_ring<Answer>(answer_memory_.get(), kAnswerSlots);
    commands_ = RingConsumer<Command>(command_memory_.get(), kCommandSlots);
    answers_ = RingProducer<Answer>(answer_memory_.get(), kAnswerSlots);
}

std::uint32_t Worker::step(std::uint64_t now) noexcept {
    if (step_ != 0) [[likely]] {
        counters_.longest_step_cycles.raise_to(now - now_);
    }
    now_ = now;
    std::uint32_t work = run_commands();
    work += take_submissions();
    work += take_completions();
    account_step(work);
    return work;
}

std::uint32_t Worker::take_submissions() noexcept {
    const std::size_t n = polled_sessions_.size();
    if (n == 0) {
        return 0;
    }
    std::uint32_t work = 0;
    first_session_ = first_session_ + 1 < n ? first_session_ + 1 : 0;
    for (std::size_t i = 0, at = first_session_; i < n; ++i, at = at + 1 < n ? at + 1 : 0) {
        WorkerSession& session = *polled_sessions_[at];
        if (session.broken) [[unlikely]] {
            continue;
        }
        if (session.submissions.ready()) {
            work += submit(session);
        } else {
            session.submissions.publish();
        }
    }
    ring_doorbells();
    // A refusal or a failed post completed something already.
    publish_completions();
    return work;
}

std::uint32_t Worker::take_completions() noexcept {
    const std::size_t n = polled_cqs_.size();
    if (n == 0) {
        return 0;
    }
    std::uint32_t work = 0;
    first_cq_ = first_cq_ + 1 < n ? first_cq_ + 1 : 0;
    for (std::size_t i = 0, at = first_cq_; i < n; ++i, at = at + 1 < n ? at + 1 : 0) {
        WorkerCq& cq = *polled_cqs_[at];
        if (cq.parked == 0 && !cq.failed) [[likely]] {
            work += complete(cq);
        }
    }
    publish_completions();
    return work;
}

void Worker::account_step(std::uint32_t work) noexcept {
    ++step_;
    counters_.steps.add();
    if (work != 0) {
        counters_.busy_steps.add();
    }
}

void Worker::answer(std::uint64_t id, AnswerKind kind, std::uint32_t index, std::uint32_t session_id) noexcept {
    // The ring has a slot for every command and every CQ, session and QP of sensible use; should it be full
    // all the same, the control thread's time limit reports the lost answer.
    (void)answers_.try_push(Answer{.id = id, .kind = kind, .index = index, .session_id = session_id});
}

}  // namespace pollcore
