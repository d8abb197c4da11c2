// The loop body of a worker, and the functions by which it falls asleep and wakes up.
#include "worker/worker.hpp"

#include <algorithm>

#include "base/look.hpp"
#include "base/planted.hpp"
#include "base/probe.hpp"
#include "worker/extended_poll.hpp"
#include "worker/ring_pool.hpp"

namespace pollcore {

Worker::Worker(const WorkerOptions& options)
    : turn_(options), tables_(options.qps_max), command_memory_(ring_bytes<Command>(kCommandSlots)) {
    format_ring<Command>(command_memory_.data(), kCommandSlots);
    commands_ = RingConsumer<Command>(command_memory_.data(), kCommandSlots);
}

std::uint32_t Worker::step(std::uint64_t now, std::uint32_t looks) noexcept {
    turn_.begin(now);
    std::uint32_t work = 0;
    if (commands_.ready() || !closing_.empty() || !in_use_.idle() || turn_.answers.behind()) [[unlikely]] {
        work += run_commands();
    }
    std::uint32_t looked = 0;
    std::uint32_t taken = 0;
    do {
        taken = take_submissions(++looked < looks);
        work += taken;
        work += take_completions();
        work += look_at_rings();
    } while (looked < looks && work == 0);
    // More than a burst, so from several sessions.
    if (taken > turn_.options.submit_burst && taken > turn_.options.complete_burst) [[unlikely]] {
        work += take_more_completions(taken);
    }
    if (!turn_.refills.empty()) [[unlikely]] {
        work += refill();
    }
    if (!turn_.flows.empty()) [[unlikely]] {
        work += turn_flows();
    }
    if (!turn_.lives.empty()) [[unlikely]] {
        work += turn_lives();
    }
    turn_.end();
    turn_.counters.steps.add(looked);
    if (work != 0) {
        turn_.counters.busy_steps.add();
    }
    if (!turn_.told().empty()) [[unlikely]] {
        wake_applications();
    }
    return work;
}

// A look that finds nothing runs only the next three functions. The shorter these are, the sooner the worker sees a
// request.

[[gnu::always_inline]] inline std::uint32_t Worker::take_submissions(bool looks_again) noexcept {
    std::uint32_t work = 0;
    bool rests = false;
    const std::size_t n = tables_.polled_sessions().size();
    const std::size_t first = first_session_ < n ? first_session_ : 0;
    for (std::size_t i = 0; i < n; ++i) {
        WorkerSession& session = *tables_.polled_sessions()[first + i < n ? first + i : first + i - n];
        if (looks_again && session.rests()) [[unlikely]] {
            rests = true;
            continue;
        }
        if (!session.submissions().ready_to_answer()) {
            session.release_rest();
        } else if (!session.broken()) [[likely]] {
            work += submitter_.submit(session);
        }
    }
    if (work != 0) {
        first_session_ = first + 1;
        turn_.chains.ring(turn_);
    } else if (rests) [[unlikely]] {
        // Waits until the answers have left the store buffer, before anything else is fetched (D16). This is done once
        // for all sessions, and not while another session has requests.
        settle_stores();
    }
    return work;
}

// Takes a burst from each CQ.
[[gnu::always_inline]] inline std::uint32_t Worker::take_completions() noexcept {
    std::uint32_t work = 0;
    const std::size_t n = tables_.polled_cqs().size();
    const std::size_t first = first_cq_ < n ? first_cq_ : 0;
    for (std::size_t i = 0; i < n; ++i) {
        WorkerCq& cq = *tables_.polled_cqs()[first + i < n ? first + i : first + i - n];
        if (!cq.polled()) [[unlikely]] {
            continue;
        }
        if (cq.plain()) [[likely]] {
            work += poll_plain(cq);
        } else if (!cq.options().shared) {
            work += poll_extended(cq);
        } else {
            work += poll_shared(cq);
        }
    }
    if (work != 0) {
        first_cq_ = first + 1;
    }
    return work;
}

// Takes up to `requests` more from each CQ. Without this, the requests of several processes would gather in the CQ that
// they share, where a process gets a share as large as its window, and not the share that take_submissions() gives it.
// A shared CQ has requests of one process only.
[[gnu::noinline]] std::uint32_t Worker::take_more_completions(std::uint32_t requests) noexcept {
    std::uint32_t work = 0;
    for (WorkerCq* cq : tables_.polled_cqs()) {
        std::uint32_t of_cq = 0;
        std::uint32_t taken = turn_.options.complete_burst;
        while (taken == turn_.options.complete_burst && of_cq < requests && cq->polled() && !cq->options().shared) {
            taken = cq->plain() ? poll_plain(*cq) : poll_extended(*cq);
            of_cq += taken;
        }
        work += of_cq;
    }
    return work;
}

[[gnu::always_inline]] inline std::uint32_t Worker::look_at_rings() noexcept {
    std::uint32_t work = 0;
    for (std::size_t i = 0; i < turn_.rings.items().size(); ++i) {
        if (RingPool& ring = *turn_.rings.items()[i]; ring.begun()) [[unlikely]] {
            work += ring.take_records(turn_);
        }
    }
    return work;
}

/// Calls take_completions(). Not inlined, because its callers need not be fast.
[[gnu::noinline]] std::uint32_t Worker::look_at_cqs() noexcept {
    return take_completions();
}

[[gnu::always_inline]] inline std::uint32_t Worker::poll_plain(WorkerCq& cq) noexcept {
    return polled(cq, ibv_poll_cq(cq.options().cq, static_cast<int>(turn_.options.complete_burst), router_.wcs()),
                  false);
}

// Not inlined, because the registers that it needs would slow down a look with ibv_poll_cq.
[[gnu::noinline]] std::uint32_t Worker::poll_extended(WorkerCq& cq) noexcept {
    if (cq.options().device_time) [[unlikely]] {
        return poll_with_times(cq);
    }
    return polled(cq, read_extended(cq, static_cast<int>(turn_.options.complete_burst), router_.wcs(), nullptr), false);
}

[[gnu::noinline]] std::uint32_t Worker::poll_shared(WorkerCq& cq) noexcept {
    const bool times = cq.options().device_time;
    const int most = static_cast<int>(turn_.options.complete_burst);
    const int n = times ? read_extended<true>(cq, most, router_.wcs(), router_.device_times())
                        : ibv_poll_cq(cq.options().cq, most, router_.wcs());
    if (n > 0) {
        router_.disown_foreign(cq, static_cast<std::uint32_t>(n));
    }
    return polled(cq, n, times);
}

[[gnu::noinline]] std::uint32_t Worker::poll_with_times(WorkerCq& cq) noexcept {
    const int n =
        read_extended(cq, static_cast<int>(turn_.options.complete_burst), router_.wcs(), router_.device_times());
    return polled(cq, n, true);
}

[[gnu::always_inline]] inline std::uint32_t Worker::polled(WorkerCq& cq, int n, bool with_times) noexcept {
    if (n < static_cast<int>(turn_.options.complete_burst)) {
        cq.count_emptied();
    }
    if (n == 0) {
        return 0;
    }
    if (n < 0) [[unlikely]] {
        router_.fail(cq);
        return 0;
    }
    const auto taken = static_cast<std::uint32_t>(n);
    if (with_times) {
        router_.route_with_times(cq, taken);
    } else {
        router_.route(cq, taken);
    }
    cq.count_taken(taken);
    turn_.counters.completions.add(taken);
    return taken;
}

// ---- Objects that have something due ----

// Posts several receives to a queue with one doorbell. This is done at the end of a step, when all buffers released and
// all receives used in the step are known.
[[gnu::noinline]] std::uint32_t Worker::refill() noexcept {
    std::uint32_t posted = 0;
    turn_.refills.turn([&](RecvQueue& queue) {
        if (!turn_.chains.recv_room(RecvQueue::kFillMax)) {
            turn_.chains.ring(turn_);
        }
        return queue.fill(turn_, posted) ? DueList<RecvQueue>::Then::stay : DueList<RecvQueue>::Then::leave;
    });
    if (posted != 0) {
        turn_.chains.ring(turn_);
    }
    return posted;
}

[[gnu::noinline]] std::uint32_t Worker::turn_flows() noexcept {
    std::uint32_t work = 0;
    turn_.flows.turn(
        [&](Flow& flow) { return flow.turn(turn_, work) ? DueList<Flow>::Then::stay : DueList<Flow>::Then::leave; });
    return work;
}

/// The part of a step in which queue pairs end. At this point no request is half taken, no completion is half handled,
/// and all chains are empty.
[[gnu::noinline]] std::uint32_t Worker::turn_lives() noexcept {
    std::uint32_t ended = 0;
    turn_.lives.turn([&](WorkerQp& qp) {
        const std::uint32_t index = qp.handle().index;
        const std::optional<WorkerQp::Left> left = qp.turn(turn_, turn_.answers.room());
        if (!left) {
            return qp.waits_for_turn() ? DueList<WorkerQp>::Then::stay : DueList<WorkerQp>::Then::leave;
        }
        ++ended;
        qp.due.leave();
        if (left->forgotten) {
            tables_.remove_qp(index);
        }
        turn_.answers.answer(left->command, left->kind,
                             index);  // after this answer, a forgotten QP belongs to the control thread
        return DueList<WorkerQp>::Then::gone;
    });
    return ended;
}

// ---- Falling asleep, and being woken ----

bool Worker::fall_asleep(std::uint64_t now) noexcept {
    turn_.resume(now);
    if (turn_.options.bell < 0 || !at_rest()) {
        return false;
    }
    for (WorkerSession* session : tables_.polled_sessions()) {
        session->expect_worker_asleep();
    }
    sleeper_.expect_commands();
    schedule_point(SchedulePoint::arm);
    WorkerCq* const not_armed = sleeper_.arm();
    if (not_armed == nullptr && (planted(Bug::no_last_look) || !look_again())) {
        turn_.counters.sleeps.add();
        turn_.counters.asleep.set(1);
        sleeper_.sleep();
        POLLCORE_PROBE(worker_sleeps, now);
        return true;
    }
    wake_up(now);
    if (not_armed != nullptr && not_armed->options().shared) {
        router_.fail(*not_armed);  // the process has destroyed it, and must not keep the worker awake for ever
    }
    return false;
}

// Returns true if no activity is under way that ends without an event.
bool Worker::at_rest() const noexcept {
    if (turn_.options.solicited_only && turn_.reading()) {
        return false;  // the completion of a read raises no solicited event, although its message may be solicited
    }
    return turn_.lives.empty() && closing_.empty() && in_use_.idle() && !turn_.answers.behind() &&
           turn_.refills.empty() &&
           std::none_of(tables_.polled_cqs().begin(), tables_.polled_cqs().end(),
                        [](const WorkerCq* cq) { return cq->parked(); });
}

// Returns true if there was something to do.
bool Worker::look_again() noexcept {
    schedule_point(SchedulePoint::look);
    bool found = commands_.ready();
    for (WorkerSession* session : tables_.polled_sessions()) {
        session->release_all();
        found = found || (session->submissions().ready() && !session->broken());
    }
    found = look_at_cqs() != 0 || found;
    // a failed CQ gives no completions, but its queue pairs are now in Turn::lives
    found = found || !turn_.lives.empty();
    if (!turn_.told().empty()) {
        wake_applications();
    }
    return sleeper_.take_events() != 0 || found || flows_have_news(turn_.now());
}

void Worker::acknowledge_events() noexcept {
    for (WorkerCq* cq : tables_.polled_cqs()) {
        sleeper_.acknowledge(*cq);
    }
}

bool Worker::woken(bool rung, std::uint64_t now) noexcept {
    return rung || sleeper_.take_events() != 0 || flows_have_news(now);
}

bool Worker::flows_have_news(std::uint64_t now) const noexcept {
    const auto& flows = turn_.flows.items();
    return std::any_of(flows.begin(), flows.end(), [now](const Flow* flow) { return flow->has_news(now); });
}

std::uint64_t Worker::look_every_ns() const noexcept {
    std::uint64_t often = CompletionChannel::kNever;
    for (const Flow* flow : turn_.flows.items()) {
        often = std::min(often, flow->look_every_ns());
    }
    return often;
}

// Called after a sleep, and by fall_asleep() if the worker must stay awake.
void Worker::wake_up(std::uint64_t now) noexcept {
    turn_.resume(now);  // the time asleep does not count as part of a step
    const bool slept = sleeper_.awake();
    for (WorkerSession* session : tables_.polled_sessions()) {
        if (session->worker_awake() || !slept) {
            continue;
        }
        const std::uint64_t woken_at = session->woken_at();
        turn_.counters.wake_cycles[wake_bucket(woken_at < now ? now - woken_at : 0)].add();
    }
    turn_.counters.asleep.set(0);
    POLLCORE_PROBE(worker_wakes, now, slept);
}

void Worker::begin_wait() noexcept {
    turn_.counters.asleep.set(1);
    heartbeat_.wait();
}

void Worker::end_wait(std::uint64_t now) noexcept {
    heartbeat_.begin(now);
    turn_.counters.asleep.set(0);
}

const RingConsumer<WorkRequest>* Worker::only_source() const noexcept {
    const auto& sessions = tables_.polled_sessions();
    if (sessions.size() != 1 || !sessions.front()->idle() || !turn_.rings.empty() || !turn_.flows.empty() ||
        !at_rest()) {
        return nullptr;
    }
    return &sessions.front()->submissions();
}

// Wakes each application once for all its completions in a step.
void Worker::wake_applications() noexcept {
    for (WorkerSession* session : turn_.told()) {
        turn_.counters.applications_woken.add(session->wake_told());
    }
    turn_.forget_told();
}

}  // namespace pollcore
