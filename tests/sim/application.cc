#include "sim/application.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <span>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "sim/tags.hpp"
#include "sim/violation.hpp"
#include "sim/world.hpp"

namespace pollcore::sim {
namespace {

// Fills a buffer whose request has failed. From then on nobody may write to the buffer.
constexpr std::uint64_t kGivenBack = 0x6b6b6b6b;

}  // namespace

Application::Application(World& world, std::string name, Random random, Session session, std::uint32_t completion_slots,
                         bool wide, bool device_time, const Shape& shape)
    : world_(world),
      name_(std::move(name)),
      random_(random),
      session_(std::move(session)),
      shape_(shape),
      completion_slots_(completion_slots),
      wide_(wide),
      device_time_(device_time) {}

void Application::use(Channel& channel, std::size_t lane) {
    Use use;
    use.channel = &channel;
    use.lane = lane;
    use.receives = lane == 0;
    uses_.push_back(std::move(use));
}

void Application::use(SharedReceives& shared) {
    shared_ = &shared;
    shared_busy_.assign(SharedReceives::kSlots, false);
}

bool Application::uses(const Channel& channel) const noexcept {
    return std::any_of(uses_.begin(), uses_.end(), [&](const Use& use) { return use.channel == &channel; });
}

void Application::run() {
    while (!world_.winding_down() && !close_wanted_) {
        turn();
        world_.scheduler.yield();
    }
    while (!close_wanted_) {
        poll_all_and_retire();
        for (Use& use : uses_) {
            keep_receives(use);
        }
        keep_shared_receives();
        rest(Scheduler::kForever);
        world_.scheduler.yield();
    }
    finish();
    ended_ = true;
}

// Sleeps until the session has news, the application is to close or a queue pair has a new life, at most for `most_ns`.
// Does not sleep if arm() fails. After a sleep, the next call polls instead.
void Application::rest(std::uint64_t most_ns) {
    if (news_) {
        if (world_.scheduler.steps() >= no_poll_until_) {
            news_ = false;
            poll_all_and_retire();  // the session signals only once
        }
        return;
    }
    news_ = session_.event_fd() >= 0;
    if (!session_.arm()) {
        return;
    }
    (void)world_.scheduler.wait(most_ns, [this] {
        pollfd readable{.fd = session_.event_fd(), .events = POLLIN, .revents = 0};
        // A queue pair with a new life needs receives.
        const bool new_life =
            std::any_of(uses_.begin(), uses_.end(), [](const Use& use) { return use.life != use.channel->end; });
        return close_wanted_ || new_life || ::poll(&readable, 1, 0) == 1;
    });
}

void Application::turn() {
    if (uses_.empty() || (shape_.idles != 0 && random_.one_in(shape_.idles))) {
        const bool forever = random_.one_in(4) && keeps_all_receives();
        return rest(forever ? Scheduler::kForever : random_.between(100, 20'000));
    }
    Use& use = uses_[random_.below(static_cast<std::uint32_t>(uses_.size()))];
    const bool may_poll = world_.scheduler.steps() >= no_poll_until_;
    if (use.old_handle.valid() && random_.one_in(16)) {
        try_old_handle(use);
    } else if (random_.one_in(shape_.polls)) {
        send_some(use);
    } else if (may_poll) {
        random_.one_in(4) ? poll_all_and_retire() : void(poll());
    }
    if (may_poll) {
        keep_receives(use);
        keep_shared_receives();
    }
}

// Each life of the queue pair has its own memory: requests of the previous life that are still in flight keep their
// slots.
void Application::begin_life(Use& use) {
    use.old_handle = use.handle;
    use.handle = use.channel->qp.handle();
    use.life = use.channel->end;
    use.send_busy.assign(Channel::kSlots, false);
    use.recv_busy.assign(Channel::kSlots, false);
    use.sends = 0;
    use.unsignaled = 0;
    use.retired = 0;
}

void Application::send_some(Use& use) {
    const std::uint32_t batch = random_.between(1, shape_.batch);
    for (std::uint32_t i = 0; i < batch && use.sends < shape_.window; ++i) {
        if (!send_one(use)) {
            return;
        }
    }
}

// The session only counts retired requests. To learn which requests retired, the application must first take all
// earlier completions.
void Application::poll_all_and_retire() {
    std::vector<std::uint32_t> counts;
    for (const Use& use : uses_) {
        counts.push_back(session_.retired(use.channel->qp.handle()));
    }
    while (poll()) {
    }
    for (std::size_t i = 0; i < uses_.size(); ++i) {
        Use& use = uses_[i];
        End* end = use.channel->end;
        if (use.life == nullptr || use.life != end || use.channel->closed) {
            continue;
        }
        const auto more =
            static_cast<std::int32_t>(counts[i] - use.retired);  // negative if completions have retired later requests
        if (more > 0) {
            (void)world_.model.retired(*end, use.lane, static_cast<std::uint32_t>(more),
                                       [&](const Request& request) { give_back(use, *end, request); });
        }
    }
}

bool Application::poll() {
    const std::uint32_t most = random_.between(1, 8);
    return (wide_ ? poll_as<WideCompletion>(most) : poll_as<Completion>(most)) > 0;
}

template <class Record>
std::size_t Application::poll_as(std::size_t most) {
    std::array<Record, 8> completions;
    in_call_ = true;
    const std::size_t n = session_.poll(std::span(completions).first(most));
    in_call_ = false;
    for (std::size_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<Record, WideCompletion>) {
            check_time(completions[i]);
            take(completions[i], completions[i]);
        } else {
            take(completions[i], {});
        }
    }
    if (n > 0) {
        world_.scheduler.progress();
    }
    return n;
}

// Checks that the device times never go back, because the completions of a queue come in the order in which the device
// wrote them.
void Application::check_time(const WideCompletion& completion) {
    const std::uint64_t time = completion.device_time;
    const bool timed = device_time_ && completion.ok();
    // If the signal of a request was coalesced with that of a later request, the request has the later one's time. If
    // the later request has failed, there is no time, and no further request of the queue succeeds with a time.
    const bool may_lack_it =
        !completion.from_recv_queue() && std::any_of(uses_.begin(), uses_.end(), [&](const Use& use) {
            return use.channel->coalesces && use.channel->index == completion.tag >> kChannelShift;
        });
    if (timed && time == 0 && may_lack_it) {
        lack_time_.insert(completion.qp);
        return;
    }
    if ((time != 0) != timed || (time != 0 && !completion.from_recv_queue() && lack_time_.count(completion.qp) != 0)) {
        throw Violation("I6 fields", fmt::format("{}: {:#x} has {} and the device's time {}", name_, completion.tag,
                                                 status_name(completion.status), time));
    }
    if (time == 0) {
        return;
    }
    std::uint64_t& newest = newest_times_[{completion.qp, completion.from_recv_queue()}];
    if (time < newest || time > world_.scheduler.now_ns()) {
        throw Violation("I6 fields", fmt::format("{}: {:#x} has the device's time {}, after {}, and it is {}", name_,
                                                 completion.tag, time, newest, world_.scheduler.now_ns()));
    }
    newest = time;
}

void Application::take(const Completion& completion, const CompletionExtension& more) {
    const std::uint64_t channel_index = completion.tag >> kChannelShift;
    const std::uint64_t life = completion.tag >> kLifeShift & 0xff;
    Use* use = nullptr;
    for (Use& other : uses_) {
        if (other.channel->index == channel_index && life < other.channel->lives.size()) {
            use = &other;
        }
    }
    world_.trace.add((completion.flags & kByRuntime) != 0 ? "polls {0:#x}: {3}, by the runtime" : "polls {0:#x}: {3}",
                     completion.tag, 0, 0, status_name(completion.status));
    if ((completion.tag & kShared) != 0) {
        return take_shared(completion);
    }
    if (use == nullptr) {
        throw Violation("I1 conservation",
                        fmt::format("{}: a completion with tag {:#x}, which it never gave", name_, completion.tag));
    }
    End& end = *use->channel->lives[life];
    const auto on_retired = [&](const Request& request) { give_back(*use, end, request); };
    const Request request = world_.model.completed(end, use->lane, completion, on_retired);
    ++completed_;
    const bool current = use->life == &end;
    const bool receive = is_recv(request.opcode);
    if (current && !receive) {
        --use->sends;
    }
    if (wide_ && completion.ok() && receive && end.datagrams && more.src_qp != end.found_from->qp_num) {
        throw Violation("I6 fields", fmt::format("{}: a datagram is said to be of queue pair {}, and was sent by {}",
                                                 end.name, more.src_qp, end.found_from->name));
    }
    if (request.opcode == Opcode::bind_mw || request.opcode == Opcode::local_inv) {
        window_changed(*use->channel, end, request, completion);
    }
    // The worker has taken all receives that were submitted before a send that the device has carried out.
    if (completion.ok() && !receive) {
        for (const Use& other : uses_) {
            if (End* current_end = other.channel->end;
                current_end != nullptr && current_end->datagrams && other.receives) {
                current_end->receives_posted = std::max(current_end->receives_posted, request.order);
            }
        }
    }
    // The application owns the buffer again. After a failure it does not reuse the buffer, so that it notices a later
    // write to the buffer.
    if (!completion.ok() && (receive || request.opcode == Opcode::rdma_read)) {
        return watch(request);
    }
    if (current && completion.ok()) {
        (receive ? use->recv_busy : use->send_busy)[request.slot] = false;
    }
}

void Application::watch(const Request& failed) {
    fill_pattern({failed.local, failed.length}, kGivenBack);
    given_back_.push_back({failed.local, failed.length});
}

void Application::give_back(Use& use, End& end, const Request& request) {
    ++retired_;
    if (use.life == &end) {
        use.send_busy[request.slot] = false;
        --use.sends;
        ++use.retired;
    }
}

void Application::check_figures() {
    if (in_call_ || !session_.valid()) {
        return;
    }
    const SessionFigures figures = session_.figures();
    if (figures.accepted != submitted_ || figures.completed != completed_ || figures.retired < retired_ ||
        figures.completed + figures.retired > figures.accepted) {
        throw Violation(
            "I1 conservation",
            fmt::format("{}: the session has accepted {}, completed {} and retired {}; seen were "
                        "{}, {} and {}",
                        name_, figures.accepted, figures.completed, figures.retired, submitted_, completed_, retired_));
    }
}

bool Application::sends_rest(std::uint32_t but_with) const noexcept {
    return std::none_of(uses_.begin(), uses_.end(), [&](const Use& use) {
        // A queue pair whose CQ was lost may have taken receives from the peer's shared queue without a completion.
        const SharedReceives* taken_from = use.channel->peer != nullptr ? use.channel->peer->shared : nullptr;
        const bool peer_may_starve = taken_from != nullptr && (taken_from->state->excuses & kCqLost) != 0;
        return std::any_of(use.channel->lives.begin(), use.channel->lives.end(), [&](const End* end) {
            if ((end->excuses & but_with) != 0 || (end->peer != nullptr && (end->peer->excuses & kKept) != 0) ||
                peer_may_starve) {
                return false;
            }
            const auto& sends = end->lanes[use.lane].sends;
            // If unsignaled requests fill the session's share of the send queue, the worker signals them.
            if (end == use.channel->end && use.channel->ready && sends.size() >= use.channel->sends_max) {
                return true;
            }
            return std::any_of(sends.begin(), sends.end(), [](const Request& request) { return request.signaled; });
        });
    });
}

// Closing the session completes all requests in flight. No request may remain afterwards, unless the provider keeps the
// queue pair (kKept).
void Application::finish() {
    session_.close();
    closed_ = true;
    while (poll()) {
    }
    std::size_t kept = 0;
    for (Use& use : uses_) {
        for (End* end : use.channel->lives) {
            kept += world_.model.over(*end, use.lane, [&](const Request& request) { give_back(use, *end, request); });
        }
    }
    if (shared_ != nullptr) {
        kept += world_.model.over(*shared_->state);
    }
    check_figures();
    if (submitted_ != completed_ + retired_ + kept) {
        throw Violation("I1 conservation",
                        fmt::format("{}: {} were submitted, {} completed and {} retired, and nothing is left", name_,
                                    submitted_, completed_, retired_));
    }
    world_.trace.add("has ended: {} submitted, {} completed, {} retired", submitted_, completed_, retired_);
}

void Application::check_given_back() const {
    for (const std::span<std::byte> bytes : given_back_) {
        if (!has_pattern(bytes, kGivenBack)) {
            throw Violation("I1 conservation",
                            name_ + ": a buffer was written after its request had ended with an error");
        }
    }
}

}  // namespace pollcore::sim
