// The receives that an application keeps posted, on its queue pairs and on its shared receive queue.
#include <algorithm>

#include <fmt/format.h>

#include "sim/application.hpp"
#include "sim/tags.hpp"
#include "sim/violation.hpp"
#include "sim/world.hpp"

namespace pollcore::sim {

std::uint32_t Application::receives_wanted(std::uint32_t depth, std::uint32_t per_cent) const noexcept {
    // The receives of one queue pair must leave completion slots for the receives of the other queue pairs. Otherwise
    // all queue pairs could wait for each other's messages.
    const auto fair = completion_slots_ / 2 / static_cast<std::uint32_t>(uses_.size() + (shared_ != nullptr));
    return std::clamp(depth * per_cent / 100, 1u, std::max(fair, 1u));
}

// Posts the missing receives, and returns true if all are posted then. Called before the application sleeps without a
// limit, because a peer may wait for its receives.
bool Application::keeps_all_receives() {
    keep_shared_receives();
    if (shared_ != nullptr && shared_->state->receives.size() < receives_wanted(shared_->depth, 100)) {
        return false;
    }
    return std::all_of(uses_.begin(), uses_.end(), [&](Use& use) {
        if (!use.receives || use.channel->shared != nullptr) {
            return true;
        }
        keep_receives(use);
        return use.life == use.channel->end && use.life != nullptr &&
               use.life->receives.size() >= receives_wanted(use.channel->receives_max, 100);
    });
}

void Application::keep_receives(Use& use) {
    Channel& channel = *use.channel;
    if (!use.receives || channel.shared != nullptr || channel.end == nullptr || channel.closed || closed_) {
        return;
    }
    const std::uint32_t wanted = receives_wanted(channel.receives_max, world_.winding_down() ? 100 : shape_.receives);
    // The queue pair may be reset while a submission is in progress.
    while (channel.end->receives.size() < wanted) {
        End& end = *channel.end;
        if (use.life != &end) {
            begin_life(use);
        }
        std::uint32_t slot = 0;
        while (use.recv_busy[slot]) {
            if (++slot == Channel::kSlots) {
                return;
            }
        }
        Request request;
        request.tag = tag_of(channel);
        request.order = next_sequence_;
        request.opcode = Opcode::recv;
        request.slot = slot;
        request.local = channel.receive_slot(slot);
        request.length = Channel::kSlotBytes;
        WorkRequest work;
        work.tag = request.tag;
        work.qp = channel.qp.handle();
        work.opcode = Opcode::recv;
        work.sge = {reinterpret_cast<std::uintptr_t>(request.local), request.length, channel.memory.lkey()};
        work.num_sge = 1;
        world_.model.submitting(end, use.lane, request);
        in_call_ = true;
        const Refusal refusal = session_.try_submit(work);
        in_call_ = false;
        if (refusal != Refusal::none) {
            world_.model.refused(end, use.lane, request);
            on_refusal(use, end, request, refusal);
            return;
        }
        world_.trace.add("submits receive {:#x}", request.tag);
        world_.scheduler.progress();
        ++next_sequence_;
        ++submitted_;
        use.recv_busy[slot] = true;
    }
}

void Application::keep_shared_receives() {
    if (shared_ == nullptr || shared_->closed || closed_) {
        return;
    }
    SharedQueue& queue = *shared_->state;
    const std::uint32_t wanted = receives_wanted(shared_->depth, world_.winding_down() ? 100 : shape_.receives);
    while (queue.receives.size() < wanted) {
        const auto slot = static_cast<std::uint32_t>(std::find(shared_busy_.begin(), shared_busy_.end(), false) -
                                                     shared_busy_.begin());
        if (slot == SharedReceives::kSlots) {
            return;
        }
        Request request;
        request.tag = kShared | (next_sequence_ & kSequenceMask);
        request.opcode = Opcode::srq_recv;
        request.slot = slot;
        request.local = shared_->slot(slot);
        request.length = Channel::kSlotBytes;
        WorkRequest work;
        work.tag = request.tag;
        work.srq = queue.handle;
        work.opcode = Opcode::srq_recv;
        work.sge = {reinterpret_cast<std::uintptr_t>(request.local), request.length, shared_->memory.lkey()};
        work.num_sge = 1;
        world_.model.submitting(queue, request);
        in_call_ = true;
        const Refusal refusal = session_.try_submit(work);
        in_call_ = false;
        if (refusal != Refusal::none) {
            world_.model.refused(queue);
            return on_refusal(*shared_, refusal);
        }
        world_.trace.add("submits shared receive {:#x}", request.tag);
        world_.scheduler.progress();
        ++next_sequence_;
        ++submitted_;
        shared_busy_[slot] = true;
    }
}

void Application::take_shared(const Completion& completion) {
    if (shared_ == nullptr) {
        throw Violation("I1 conservation",
                        fmt::format("{}: a completion with tag {:#x}, which it never gave", name_, completion.tag));
    }
    const Request request =
        world_.model.completed(*shared_->state, world_.life_of(shared_->runtime, completion.qp), completion);
    ++completed_;
    if (completion.ok()) {
        shared_busy_[request.slot] = false;
        return;
    }
    watch(request);
}

void Application::on_refusal(const SharedReceives& shared, Refusal refusal) {
    const SharedQueue& queue = *shared.state;
    bool right = false;
    switch (refusal) {
        case Refusal::submission_ring_full: right = true; break;
        case Refusal::completion_ring_full: right = session_.figures().in_flight() >= completion_slots_; break;
        case Refusal::srq_full: right = queue.receives.size() >= shared.depth; break;
        case Refusal::stale_handle: right = (queue.excuses & (kEnding | kSessionClosing | kDeviceLost)) != 0; break;
        case Refusal::session_closed: right = (queue.excuses & kSessionClosing) != 0 || closed_; break;
        default: break;
    }
    if (!right) {
        throw Violation(
            "I3 room",
            fmt::format("{} was refused a receive of {} with {}, and has {} in flight there (causes: {})", name_,
                        queue.name, refusal_name(refusal), queue.receives.size(), causes(queue.excuses)));
    }
}

}  // namespace pollcore::sim
