// Falling asleep and being woken (I8).
//
// The worker says that it sleeps, to each session and to the control side; it arms its CQs; it looks once more, one burst of
// each CQ and all rings; and only if there was nothing does its thread wait. Whatever comes after it has said so rings its
// bell, whatever completes after a CQ was armed makes an event, and what came before that the look finds.
#include <algorithm>
#include <utility>

#include "base/event_fd.hpp"
#include "base/planted.hpp"
#include "worker/worker.hpp"

namespace pollcore {
namespace {

// Acknowledging takes a mutex of the provider, so it is done for so many events at once.
constexpr std::uint32_t kEventsPerAck = 64;

// Taken from one channel at a time (I10).
constexpr std::uint32_t kEventsPerLook = 64;

}  // namespace

bool Worker::fall_asleep(std::uint64_t now) noexcept {
    turn_.resume(now);
    if (turn_.options.bell < 0 || !at_rest()) {
        return false;
    }
    for (WorkerSession* session : polled_sessions_) {
        session->expect_worker_asleep();
    }
    command_sleep_.expect();
    schedule_point(SchedulePoint::arm);
    if (arm() && (planted(Bug::no_last_look) || !look_again())) {
        turn_.counters.sleeps.add();
        turn_.counters.asleep.set(1);
        slept_ = true;
        return true;
    }
    wake_up(now);
    return false;
}

// Nothing is under way that goes on without an event.
bool Worker::at_rest() const noexcept {
    if (turn_.options.solicited_only && reads_ != 0) {
        return false;  // a read's completion is not solicited, and what it brings may be
    }
    return lives_.empty() && closing_.empty() && search_.command == 0 && !turn_.answers.behind() && to_fill_.empty() &&
           std::none_of(polled_cqs_.begin(), polled_cqs_.end(), [](const WorkerCq* cq) { return cq->parked != 0; });
}

bool Worker::arm() noexcept {
    (void)take_events();  // of CQs that were armed before
    for (WorkerCq* cq : polled_cqs_) {
        if (cq->failed || cq->armed) {
            continue;
        }
        if (cq->channel == nullptr || ibv_req_notify_cq(cq->cq, turn_.options.solicited_only ? 1 : 0) != 0) {
            turn_.counters.failed_arms.add();
            return false;
        }
        cq->armed = true;
    }
    return true;
}

// True when there was something.
bool Worker::look_again() noexcept {
    schedule_point(SchedulePoint::look);
    bool found = commands_.ready();
    for (WorkerSession* session : polled_sessions_) {
        session->release_all();
        found = found || (session->submissions().ready() && !session->broken());
    }
    found = look_at_cqs() != 0 || found;
    found = found || !lives_.empty();  // a CQ that has failed has nothing to take, and its queue pairs end
    if (!turn_.told().empty()) {
        wake_applications();
    }
    return take_events() != 0 || found || flows_have_news(turn_.now());
}

// An event with nothing behind it is normal: its completion was polled before the worker slept.
std::uint32_t Worker::take_events() noexcept {
    std::uint32_t taken = 0;
    for (std::size_t i = 0; i < channels_.size();) {
        CompletionChannel& channel = *channels_[i];
        ibv_cq* verbs_cq = nullptr;
        int result = 0;
        for (std::uint32_t n = 0; n < kEventsPerLook && (result = channel.next_event(verbs_cq)) == 0; ++n) {
            ++taken;
            turn_.counters.cq_events.add();
            const auto cq = std::find_if(polled_cqs_.begin(), polled_cqs_.end(),
                                         [verbs_cq](const WorkerCq* known) { return known->cq == verbs_cq; });
            if (cq == polled_cqs_.end()) {
                channel.acknowledge(*verbs_cq, 1);  // it was removed, and whoever destroys it waits for this
                turn_.counters.cq_event_acks.add();
                continue;
            }
            (*cq)->armed = planted(Bug::missed_rearm);
            if (++(*cq)->unacknowledged == kEventsPerAck) {
                acknowledge(**cq);
            }
        }
        if (result != 0 && result != EAGAIN) [[unlikely]] {
            // Its device is lost, or nothing is known of it: what is on it makes no more events, and cannot be slept for.
            for (WorkerCq* cq : polled_cqs_) {
                if (cq->channel == &channel) {
                    acknowledge(*cq);
                    cq->channel = nullptr;
                    cq->armed = false;
                }
            }
            channels_.erase(channels_.begin() + static_cast<std::ptrdiff_t>(i));
            turn_.counters.failed_channels.add();
            ++taken;  // nobody is to sleep for what makes no more events
            continue;
        }
        ++i;
    }
    return taken;
}

void Worker::acknowledge(WorkerCq& cq) noexcept {
    if (cq.unacknowledged != 0) {
        cq.channel->acknowledge(*cq.cq, std::exchange(cq.unacknowledged, 0));
        turn_.counters.cq_event_acks.add();
    }
}

void Worker::acknowledge_events() noexcept {
    for (WorkerCq* cq : polled_cqs_) {
        acknowledge(*cq);
    }
}

bool Worker::woken(bool rung, std::uint64_t now) noexcept { return rung || take_events() != 0 || flows_have_news(now); }

std::uint64_t Worker::look_again_ns() const noexcept {
    std::uint64_t earliest = CompletionChannel::kNever;
    for (CompletionChannel* channel : channels_) {
        earliest = std::min(earliest, channel->look_again_ns());
    }
    return earliest;
}

// Also after fall_asleep() has found something.
void Worker::wake_up(std::uint64_t now) noexcept {
    turn_.resume(now);  // the time asleep is no step
    const bool slept = std::exchange(slept_, false);
    for (WorkerSession* session : polled_sessions_) {
        if (session->worker_awake() || !slept) {
            continue;
        }
        const std::uint64_t woken_at = session->woken_at();
        turn_.counters.wake_cycles[wake_bucket(woken_at < now ? now - woken_at : 0)].add();
    }
    (void)command_sleep_.rest();
    for (CompletionChannel* channel : channels_) {
        channel->awake();
    }
    turn_.counters.asleep.set(0);
}

void Worker::begin_wait() noexcept {
    turn_.counters.asleep.set(1);
    heartbeat_.wait();
}

void Worker::end_wait(std::uint64_t now) noexcept {
    heartbeat_.begin(now);
    turn_.counters.asleep.set(0);
}

void Worker::knock() noexcept {
    if (turn_.options.bell >= 0 && command_sleep_.take()) {
        signal_event(turn_.options.bell);
    }
}

const RingConsumer<WorkRequest>* Worker::only_source() const noexcept {
    if (polled_sessions_.size() != 1 || !polled_sessions_.front()->idle() || !rings_.empty() || !flows_.empty() || !at_rest()) {
        return nullptr;
    }
    return &polled_sessions_.front()->submissions();
}

// ---- Applications that sleep ----

// Once for all completions of a step.
void Worker::wake_applications() noexcept {
    for (WorkerSession* session : turn_.told()) {
        turn_.counters.applications_woken.add(session->wake_told());
    }
    turn_.forget_told();
}

}  // namespace pollcore
