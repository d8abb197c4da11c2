#include "device/soft/channel.hpp"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"

namespace pollcore::soft {
namespace {

// How long a thread sleeps at most while a link is full: the link's reader makes room without waking anybody.
constexpr std::uint64_t kLookAgainNs = 20'000;

// The most times that next_event() moves the engine before it reports that there is no event.
constexpr int kMovesMax = 16;

}  // namespace

Channel::Channel(ibv_context* of, std::shared_ptr<Engine> engine) : ibv_comp_channel{}, engine_(std::move(engine)) {
    engine_->doorbell()->open();
    context = of;
    fd = engine_->doorbell()->fd();
}

void Channel::raise(SoftCq& cq) noexcept {
    cq.armed = Armed::no;
    cq.moderation.held = 0;
    cq.moderation.until_ns = 0;
    if (cq.events_raised++ == 0)
        list(cq);
    engine_->doorbell()->ring();
}

void Channel::list(SoftCq& cq) noexcept {
    cq.next_raised = nullptr;
    *behind_raised_ = &cq;
    behind_raised_ = &cq.next_raised;
}

void Channel::unlist(SoftCq& cq) noexcept {
    SoftCq** at = &first_raised_;
    while (*at != &cq)
        at = &(*at)->next_raised;
    *at = cq.next_raised;
    if (behind_raised_ == &cq.next_raised)
        behind_raised_ = at;
}

void Channel::forget(SoftCq& cq) noexcept {
    if (cq.events_raised != 0)
        unlist(cq);
    cq.events_raised = 0;
    cq.armed = Armed::no;
}

int Channel::next_event(ibv_cq*& cq) noexcept {
    const std::lock_guard guard(engine_->lock());
    if (first_raised_ == nullptr) {
        Doorbell& bell = *engine_->doorbell();
        bell.answer();
        engine_->tick(engine_->now_ns());
        for (int moves = 0; moves < kMovesMax && engine_->move() != 0 && first_raised_ == nullptr; ++moves) {
        }
        if (first_raised_ == nullptr) {
            bell.expect();
            if (!engine_->removed()) {
                return EAGAIN;
            }
            bell.rest();
            return EIO;
        }
    }
    SoftCq& first = *first_raised_;
    unlist(first);
    if (--first.events_raised != 0)
        list(first);  // behind the other CQs
    ++first.events_taken;
    cq = first.plain();
    return 0;
}

void Channel::acknowledge(ibv_cq& cq, std::uint32_t events) noexcept {
    const std::lock_guard guard(engine_->lock());
    SoftCq& own = SoftCq::of(cq);
    own.events_taken -= std::min(events, own.events_taken);
}

void Channel::awake() noexcept {
    const std::lock_guard guard(engine_->lock());
    engine_->doorbell()->rest();
}

std::uint64_t Channel::look_again_ns() noexcept {
    const std::lock_guard guard(engine_->lock());
    if (engine_->has_packets())
        return 0;  // packets have come since next_event() looked
    const std::uint64_t timer = engine_->next_deadline_ns();
    return engine_->has_turns() ? std::min(timer, engine_->now_ns() + kLookAgainNs) : timer;
}

}  // namespace pollcore::soft
