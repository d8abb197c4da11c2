#include "worker/sleeper.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/event_fd.hpp"
#include "base/planted.hpp"

namespace pollcore {
namespace {

// Acknowledging locks a mutex, so this many events are acknowledged at once.
constexpr std::uint32_t kEventsPerAck = 64;

// One look takes at most this many events from a channel (I10).
constexpr std::uint32_t kEventsPerLook = 64;

}  // namespace

void Sleeper::add(CompletionChannel& channel) {
    descriptors_.resize(kOwnDescriptors + channels_.size() + 1);
    channels_.push_back(&channel);
}

void Sleeper::remove(const CompletionChannel& channel) noexcept {
    std::erase(channels_, &channel);
}

std::span<pollfd> Sleeper::descriptors() noexcept {
    std::size_t n = 0;
    const auto watch = [&](int fd) { descriptors_[n++] = {.fd = fd, .events = POLLIN, .revents = 0}; };
    watch(turn_.options.bell);
    watch(turn_.options.visitors);
    for (const CompletionChannel* channel : channels_) {
        watch(channel->fd());
    }
    return {descriptors_.data(), n};
}

bool Sleeper::has(const CompletionChannel* channel) const noexcept {
    return std::find(channels_.begin(), channels_.end(), channel) != channels_.end();
}

WorkerCq* Sleeper::find(const ibv_cq& cq) const noexcept {
    for (WorkerCq* known : tables_.polled_cqs()) {
        if (known->options().cq == &cq) {
            return known;
        }
    }
    return nullptr;
}

WorkerCq* Sleeper::arm() noexcept {
    (void)take_events();  // takes the events of CQs that were armed before, so that these CQs are armed again
    for (WorkerCq* cq : tables_.polled_cqs()) {
        if (cq->failed() || cq->armed()) {
            continue;
        }
        if (!cq->arm(turn_.options.solicited_only)) {
            turn_.counters.failed_arms.add();
            return cq;
        }
    }
    return nullptr;
}

std::uint32_t Sleeper::take_events() noexcept {
    std::uint32_t taken = 0;
    for (std::size_t i = 0; i < channels_.size();) {
        CompletionChannel& channel = *channels_[i];
        ibv_cq* verbs_cq = nullptr;
        int result = 0;
        for (std::uint32_t n = 0; n < kEventsPerLook && (result = channel.next_event(verbs_cq)) == 0; ++n) {
            ++taken;
            turn_.counters.cq_events.add();
            WorkerCq* const cq = find(*verbs_cq);
            if (cq == nullptr) {
                // the CQ was removed, and ibv_destroy_cq() waits until its events are acknowledged
                channel.acknowledge(*verbs_cq, 1);
                turn_.counters.cq_event_acks.add();
                continue;
            }
            if (cq->take_event(planted(Bug::missed_rearm)) == kEventsPerAck) {
                acknowledge(*cq);
            }
        }
        if (result != 0 && result != EAGAIN) [[unlikely]] {
            // The channel's device is lost, or the error is unknown. The CQs of this channel raise no more events, so
            // the worker stays awake as long as it polls one of them.
            for (WorkerCq* cq : tables_.polled_cqs()) {
                if (cq->options().channel == &channel) {
                    acknowledge(*cq);
                    cq->leave_channel();
                }
            }
            channels_.erase(channels_.begin() + static_cast<std::ptrdiff_t>(i));
            turn_.counters.failed_channels.add();
            ++taken;  // counts as an event, so that the worker does not fall asleep now
            continue;
        }
        ++i;
    }
    return taken;
}

void Sleeper::acknowledge(WorkerCq& cq) noexcept {
    turn_.counters.cq_event_acks.add(cq.acknowledge());
}

std::uint64_t Sleeper::look_again_ns() const noexcept {
    std::uint64_t earliest = CompletionChannel::kNever;
    for (CompletionChannel* channel : channels_) {
        earliest = std::min(earliest, channel->look_again_ns());
    }
    return earliest;
}

bool Sleeper::awake() noexcept {
    (void)command_sleep_.rest();
    for (CompletionChannel* channel : channels_) {
        channel->awake();
    }
    return std::exchange(slept_, false);
}

void Sleeper::knock() noexcept {
    if (turn_.options.bell >= 0 && command_sleep_.take()) {
        signal_event(turn_.options.bell);
    }
}

}  // namespace pollcore
