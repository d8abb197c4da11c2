#include "device/soft/channel.hpp"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "device/soft/engine.hpp"
#include "device/soft/queues.hpp"

namespace pollcore::soft {
namespace {

// While a link is full its reader makes room without a word; so much later the thread looks again.
constexpr std::uint64_t kLookAgainNs = 20'000;

// So often the engine is moved before it counts as busy.
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
    ++cq.events_raised;
    raised_.push_back(&cq);  // where there is no memory, the program ends here
    engine_->doorbell()->ring();
}

void Channel::forget(SoftCq& cq) noexcept {
    std::erase(raised_, &cq);
    cq.events_raised = 0;
    cq.armed = Armed::no;
}

int Channel::next_event(ibv_cq*& cq) noexcept {
    const std::lock_guard guard(engine_->lock());
    if (raised_.empty()) {
        Doorbell& bell = *engine_->doorbell();
        bell.answer();
        engine_->tick(engine_->now_ns());
        for (int moves = 0; moves < kMovesMax && engine_->move() != 0 && raised_.empty(); ++moves) {
        }
        if (raised_.empty()) {
            bell.expect();
            if (!engine_->removed()) {
                return EAGAIN;
            }
            bell.rest();
            return EIO;
        }
    }
    SoftCq& first = *raised_.front();
    raised_.pop_front();
    --first.events_raised;
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
        return 0;  // they came after next_event() had looked
    const std::uint64_t timer = engine_->next_deadline_ns();
    return engine_->has_turns() ? std::min(timer, engine_->now_ns() + kLookAgainNs) : timer;
}

}  // namespace pollcore::soft
