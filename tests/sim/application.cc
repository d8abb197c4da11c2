#include "sim/application.hpp"

#include <poll.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "sim/violation.hpp"
#include "sim/world.hpp"

namespace pollcore::sim {
namespace {

// A tag names channel, life and request.
constexpr unsigned kChannelShift = 48;
constexpr unsigned kLifeShift = 40;
constexpr std::uint64_t kShared = std::uint64_t{1} << 63;  // and no channel: of its shared receive queue
constexpr std::uint64_t kSequenceMask = (std::uint64_t{1} << kLifeShift) - 1;

constexpr std::uint32_t kNoKey = 0xdead0000;  // no device here gives such a key

// What a buffer is filled with once a request on it has failed: nobody else is to write there any more.
constexpr std::uint64_t kGivenBack = 0x6b6b6b6b;

}  // namespace

Application::Application(World& world, std::string name, Random random, Session session, std::uint32_t completion_slots,
                         bool wide, const Shape& shape)
    : world_(world),
      name_(std::move(name)),
      random_(random),
      session_(std::move(session)),
      shape_(shape),
      completion_slots_(completion_slots),
      wide_(wide) {}

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

// Sleeps until a completion comes, if its session tells of those.
void Application::rest(std::uint64_t most_ns) {
    if (news_) {
        if (world_.scheduler.steps() >= no_poll_until_) {
            news_ = false;
            poll_all_and_retire();  // it is told once
        }
        return;
    }
    news_ = session_.event_fd() >= 0;
    if (!session_.arm()) {
        return;
    }
    (void)world_.scheduler.wait(most_ns, [this] {
        pollfd readable{.fd = session_.event_fd(), .events = POLLIN, .revents = 0};
        // A queue pair that has begun anew wants its receives.
        const bool new_life = std::any_of(uses_.begin(), uses_.end(), [](const Use& use) { return use.life != use.channel->end; });
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

// A new life of the queue pair has memory of its own: what is still in flight of the last one keeps its places.
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

// The handle of a life that is over names nothing.
void Application::try_old_handle(Use& use) {
    WorkRequest work;
    work.tag = next_sequence_;
    work.qp = use.old_handle;
    work.opcode = Opcode::send;
    work.flags = kSignaled;
    in_call_ = true;
    const Refusal refusal = session_.try_submit(work);
    in_call_ = false;
    if (refusal != Refusal::stale_handle && refusal != Refusal::session_closed) {
        throw Violation("I3 room", fmt::format("{}: the handle of an earlier life of queue pair {} gets {}", name_,
                                               use.channel->index, refusal_name(refusal)));
    }
}

void Application::send_some(Use& use) {
    const std::uint32_t batch = random_.between(1, shape_.batch);
    for (std::uint32_t i = 0; i < batch && use.sends < shape_.window; ++i) {
        if (!send_one(use)) {
            return;
        }
    }
}

bool Application::send_one(Use& use) {
    Channel& channel = *use.channel;
    if (channel.end == nullptr || (!channel.datagram && (channel.peer == nullptr || channel.peer->end == nullptr)) ||
        (!channel.ready && !random_.one_in(8))) {
        return false;
    }
    if (use.life != channel.end) {
        begin_life(use);
    }
    // Sessions that share the queue pair write to different places of the peer's.
    const std::uint32_t places = Channel::kSlots / static_cast<std::uint32_t>(channel.users.size());
    std::uint32_t slot = static_cast<std::uint32_t>(use.lane) * places;
    const std::uint32_t end_slot = slot + places;
    while (slot < end_slot && use.send_busy[slot]) {
        ++slot;
    }
    if (slot == end_slot) {
        return false;
    }
    if (channel.datagram) {
        return send_datagram(use, slot);
    }
    if (use.lane == 0 && channel.window.valid() && random_.one_in(12)) {
        return change_window(use, slot);
    }
    constexpr std::array<Opcode, 8> kOpcodes{Opcode::send,       Opcode::send,      Opcode::send_with_imm,
                                             Opcode::rdma_write, Opcode::rdma_write, Opcode::rdma_write_with_imm,
                                             Opcode::rdma_read,  Opcode::atomic_fetch_and_add};
    End& end = *channel.end;
    Request request;
    request.tag = tag_of(channel);
    request.order = next_sequence_;
    request.defect = world_.take_defect(channel);
    request.opcode = request.defect == Defect::too_long    ? Opcode::send
                     : request.defect == Defect::remote_key ? Opcode::rdma_write
                                                            : random_.pick(kOpcodes);
    request.slot = slot;
    request.local = channel.send_slot(slot);
    request.length = random_.one_in(8) ? random_.between(1, Channel::kSlotBytes) : random_.below(65);
    request.signaled = use.unsignaled >= 6 || !random_.one_in(3);
    request.pattern = end.number << 40 | std::uint64_t{use.lane} << 36 | next_sequence_ << 9;
    request.imm = static_cast<std::uint32_t>(random_.next());
    // Where several sessions post, their messages must differ.
    if (channel.users.size() > 1) {
        request.length = std::max(request.length, 8u);
    }
    if (request.defect != Defect::none) {
        request.length = request.defect == Defect::too_long ? Channel::kSlotBytes + 64 : std::max(request.length, 1u);
    }
    if (request.opcode == Opcode::atomic_fetch_and_add) {
        request.length = 8;
        request.add = random_.between(1, 100);
    } else if (request.opcode == Opcode::rdma_read) {
        request.pattern = Channel::source_pattern(*channel.peer->end);
    } else if (request.defect != Defect::too_long) {
        fill_pattern({request.local, request.length}, request.pattern);
    }

    WorkRequest work;
    work.tag = request.tag;
    work.qp = channel.qp.handle();
    work.opcode = request.opcode;
    work.flags = request.signaled ? kSignaled : 0;
    work.sge = {reinterpret_cast<std::uintptr_t>(request.local), request.length,
                request.defect == Defect::local_key ? kNoKey : channel.memory.lkey()};
    work.num_sge = 1;
    Channel& peer = *channel.peer;
    work.rkey = peer.memory.rkey();
    if (request.defect == Defect::remote_key) {
        work.rkey = peer.dead_keys.empty() ? kNoKey : peer.dead_keys[random_.below(static_cast<std::uint32_t>(peer.dead_keys.size()))];
    } else if (writes(request.opcode) && peer.window_key != 0 && peer.window_life == peer.end && peer.ready && random_.one_in(2)) {
        work.rkey = request.window_key = peer.window_key;
    }
    switch (request.opcode) {
        case Opcode::rdma_write:
        case Opcode::rdma_write_with_imm:
            request.remote = channel.peer->landing_slot(slot);
            work.remote_addr = reinterpret_cast<std::uintptr_t>(request.remote);
            break;
        case Opcode::rdma_read: work.remote_addr = reinterpret_cast<std::uintptr_t>(channel.peer->source()); break;
        case Opcode::atomic_fetch_and_add:
            work.remote_addr = reinterpret_cast<std::uintptr_t>(channel.peer->word());
            work.compare_add = request.add;
            break;
        default: break;
    }
    if (request.opcode == Opcode::send_with_imm || request.opcode == Opcode::rdma_write_with_imm) {
        work.imm_data = request.imm;
    }
    return submit(use, request, work);
}

std::uint64_t Application::tag_of(const Channel& channel) const noexcept {
    return std::uint64_t{channel.index} << kChannelShift | (channel.lives.size() - 1) << kLifeShift | (next_sequence_ & kSequenceMask);
}

// Binds the channel's window to where its peer writes, or ends what it opens: type 2 by an invalidation, type 1 by moving it. Not while
// something goes through it.
bool Application::change_window(Use& use, std::uint32_t slot) {
    Channel& channel = *use.channel;
    if (!channel.ready || channel.window_busy || channel.window_in_doubt == channel.end ||
        (channel.window_key != 0 && channel.peer->end->uses_window(channel.window_key))) {
        return false;
    }
    Request request;
    request.tag = tag_of(channel);
    request.order = next_sequence_;
    request.opcode = channel.window_key != 0 && channel.window.type() == WindowType::type_2 ? Opcode::local_inv : Opcode::bind_mw;
    request.slot = slot;
    request.local = channel.send_slot(slot);
    request.window_key = std::exchange(channel.window_key, 0);
    WorkRequest work;
    work.tag = request.tag;
    work.qp = channel.qp.handle();
    work.opcode = request.opcode;
    work.flags = kSignaled;
    if (request.opcode == Opcode::local_inv) {
        work.invalidate_rkey = request.window_key;
    } else {
        work.bind = WindowBind(channel.window.handle(), channel.memory.handle(), std::uint64_t{Channel::kSlots} * Channel::kSlotBytes);
        work.remote_addr = reinterpret_cast<std::uintptr_t>(channel.landing_slot(0));
        work.bind_access = kWindowWrite;
        work.rkey = channel.next_key = next_rkey(channel.next_key);
    }
    channel.window_busy = true;
    if (!submit(use, request, work)) {
        channel.window_busy = false;
        channel.window_key = request.window_key;
        return false;
    }
    return true;
}

void Application::window_changed(Channel& channel, const End& end, const Request& request, const Completion& completion) {
    channel.window_busy = false;
    const bool type_2 = channel.window.type() == WindowType::type_2;
    if (!completion.ok()) {
        const bool posted = completion.status != Status::post_refused && completion.status != Status::request_refused;
        if (!posted && (!type_2 || &end == channel.end)) {
            channel.window_key = request.window_key;  // it opens the window as before
        } else if (type_2) {
            channel.window_in_doubt = &end;
            if (request.window_key != 0) {
                channel.ends_with_life(end, request.window_key);
            }
        }
        return;
    }
    if (request.window_key != 0) {
        channel.dead_keys.push_back(request.window_key);
    }
    if (request.opcode != Opcode::bind_mw) {
        return;
    }
    if (type_2 && (&end != channel.end || !channel.ready)) {
        return channel.ends_with_life(end, completion.window_rkey);
    }
    channel.window_key = completion.window_rkey;
    channel.window_life = &end;
}

// To any UD queue pair of either side.
bool Application::send_datagram(Use& use, std::uint32_t slot) {
    Channel& channel = *use.channel;
    Channel& to = *world_.datagrams()[random_.below(static_cast<std::uint32_t>(world_.datagrams().size()))];
    if (to.end == nullptr || to.closed || !channel.ways[to.runtime].valid()) {
        return false;
    }
    Request request;
    request.tag = tag_of(channel);
    request.order = next_sequence_;
    request.defect = world_.take_defect(channel);
    request.opcode = random_.one_in(3) ? Opcode::send_with_imm : Opcode::send;
    request.slot = slot;
    request.local = channel.send_slot(slot);
    request.length = random_.one_in(8) ? random_.between(8, Channel::kSlotBytes - kGrhBytes) : random_.between(8, 64);
    request.signaled = use.unsignaled >= 6 || !random_.one_in(3);
    request.pattern = channel.end->number << 40 | next_sequence_ << 9;
    request.imm = static_cast<std::uint32_t>(random_.next());
    request.to = to.end;
    request.way_ends = channel.way_ends[to.runtime];
    fill_pattern({request.local, request.length}, request.pattern);
    WorkRequest work;
    work.tag = request.tag;
    work.qp = channel.qp.handle();
    work.opcode = request.opcode;
    work.flags = request.signaled ? kSignaled : 0;
    work.sge = {reinterpret_cast<std::uintptr_t>(request.local), request.length,
                request.defect == Defect::local_key ? kNoKey : channel.memory.lkey()};
    work.num_sge = 1;
    work.ud = UdDestination(channel.ways[to.runtime].handle(), to.qp_num);
    work.remote_qkey = Channel::kQkey;
    if (request.opcode == Opcode::send_with_imm) {
        work.imm_data = request.imm;
    }
    return submit(use, request, work);
}

bool Application::submit(Use& use, const Request& request, const WorkRequest& work) {
    Channel& channel = *use.channel;
    End& end = *channel.end;
    world_.model.submitting(end, use.lane, request);
    channel.submitting = request.tag;
    in_call_ = true;
    Refusal refusal{};
    const bool local = is_local(request.opcode);
    const bool carries = !local && request.opcode != Opcode::rdma_read && request.opcode != Opcode::atomic_fetch_and_add;
    if (carries && request.defect == Defect::none && request.length <= channel.inline_max && random_.one_in(2)) {
        refusal = session_.try_submit_inline(work, {request.local, request.length});
    } else if (channel.sges_max > 1 && !local && request.length > 1 && request.opcode != Opcode::atomic_fetch_and_add &&
               random_.one_in(4)) {
        const std::uint32_t first = random_.between(1, request.length - 1);
        const std::array<Sge, 2> sges{Sge{work.sge.addr, first, work.sge.lkey},
                                      Sge{work.sge.addr + first, request.length - first, work.sge.lkey}};
        refusal = session_.try_submit(work, sges);
    } else {
        refusal = session_.try_submit(work);
    }
    in_call_ = false;
    channel.submitting = 0;
    if (refusal != Refusal::none) {
        world_.model.refused(end, use.lane, request);
        on_refusal(use, end, request, refusal);
        return false;
    }
    if (!channel.ready) {  // the peer's end may not listen yet, and these packets be lost
        world_.model.excuse(end, kLossy);
        if (end.peer != nullptr) {
            world_.model.excuse(*end.peer, kPeerEnding);
        }
    }
    use.refusal = Refusal::none;
    world_.trace.add(request.signaled ? "submits {0:#x}: {3} of {1} bytes" : "submits {0:#x}: {3} of {1} bytes, unsignaled",
                     request.tag, request.length, 0, opcode_name(request.opcode));
    world_.scheduler.progress();
    ++next_sequence_;
    ++submitted_;
    ++channel.sends_submitted;
    use.send_busy[request.slot] = true;
    ++use.sends;
    use.unsignaled = request.signaled ? 0 : use.unsignaled + 1;
    return true;
}

std::uint32_t Application::receives_wanted(std::uint32_t depth, std::uint32_t per_cent) const noexcept {
    // Receives of one queue pair must leave completion slots for the others', or all would wait for each other's messages.
    const auto fair = completion_slots_ / 2 / static_cast<std::uint32_t>(uses_.size() + (shared_ != nullptr));
    return std::clamp(depth * per_cent / 100, 1u, std::max(fair, 1u));
}

// So that nobody waits for this application but for what wakes it.
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
    // A submission may take long enough for the queue pair to be reset meanwhile.
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
        const auto slot = static_cast<std::uint32_t>(std::find(shared_busy_.begin(), shared_busy_.end(), false) - shared_busy_.begin());
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
        throw Violation("I1 conservation", fmt::format("{}: a completion with tag {:#x}, which it never gave", name_, completion.tag));
    }
    const Request request = world_.model.completed(*shared_->state, world_.life_of(shared_->runtime, completion.qp), completion);
    ++completed_;
    if (completion.ok()) {
        shared_busy_[request.slot] = false;
        return;
    }
    fill_pattern({request.local, request.length}, kGivenBack);
    given_back_.push_back({request.local, request.length});
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
        throw Violation("I3 room", fmt::format("{} was refused a receive of {} with {}, and has {} in flight there (causes: {})", name_,
                                               queue.name, refusal_name(refusal), queue.receives.size(), causes(queue.excuses)));
    }
}

// Nothing is refused without the limit that it names being really reached.
void Application::on_refusal(Use& use, const End& end, const Request& request, Refusal refusal) {
    const Channel& channel = *use.channel;
    if (refusal != std::exchange(use.refusal, refusal)) {
        world_.trace.add("is refused {0:#x}: {3}", request.tag, 0, 0, refusal_name(refusal));
    }
    bool right = false;
    switch (refusal) {
        case Refusal::submission_ring_full: right = true; break;  // which only the worker's next look tells
        case Refusal::completion_ring_full: {
            const SessionFigures figures = session_.figures();
            right = figures.in_flight() >= completion_slots_;
            break;
        }
        case Refusal::send_queue_full:
            right = use.sends - (session_.retired(channel.qp.handle()) - use.retired) >= channel.sends_max;
            break;
        case Refusal::receive_queue_full: right = end.receives.size() >= channel.receives_max; break;
        case Refusal::stale_handle:
            right = (end.excuses & (kEnding | kSessionClosing | kCqLost | kDeviceLost)) != 0 || channel.closed;
            break;
        case Refusal::not_connected: right = !channel.ready; break;
        case Refusal::qp_in_error: right = end.excuses != 0; break;
        case Refusal::session_closed: right = (end.excuses & kSessionClosing) != 0 || closed_; break;
        default: break;
    }
    if (!right) {
        throw Violation("I3 room", fmt::format("{} was refused a request on {} with {}, and has {} sends and {} receives in "
                                               "flight there (causes: {}; the queue pair's is {})",
                                               name_, end.name, refusal_name(refusal), use.sends, end.receives.size(),
                                               causes(end.excuses), status_name(session_.cause(channel.qp.handle()))));
    }
}

// Which requests are retired is known only when all completions that came before were taken.
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
        const auto more = static_cast<std::int32_t>(counts[i] - use.retired);  // completions may have told of later ones
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
        throw Violation("I1 conservation", fmt::format("{}: a completion with tag {:#x}, which it never gave", name_,
                                                       completion.tag));
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
        throw Violation("I6 fields", fmt::format("{}: a datagram is said to be of queue pair {}, and was sent by {}", end.name, more.src_qp,
                                                 end.found_from->name));
    }
    if (request.opcode == Opcode::bind_mw || request.opcode == Opcode::local_inv) {
        window_changed(*use->channel, end, request, completion);
    }
    // A send that the device has carried out was taken by the worker after all receives that were submitted before it.
    if (completion.ok() && !receive) {
        for (const Use& other : uses_) {
            if (End* current_end = other.channel->end; current_end != nullptr && current_end->datagrams && other.receives) {
                current_end->receives_posted = std::max(current_end->receives_posted, request.order);
            }
        }
    }
    // Ours again. After a failure the place stays empty, to see whether somebody still writes there.
    if (!completion.ok() && (receive || request.opcode == Opcode::rdma_read)) {
        fill_pattern({request.local, request.length}, kGivenBack);
        given_back_.push_back({request.local, request.length});
        return;
    }
    if (current && completion.ok()) {
        (receive ? use->recv_busy : use->send_busy)[request.slot] = false;
    }
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
        throw Violation("I1 conservation", fmt::format("{}: the session has accepted {}, completed {} and retired {}; seen were "
                                                       "{}, {} and {}",
                                                       name_, figures.accepted, figures.completed, figures.retired, submitted_,
                                                       completed_, retired_));
    }
}

bool Application::sends_rest(std::uint32_t but_with) const noexcept {
    return std::none_of(uses_.begin(), uses_.end(), [&](const Use& use) {
        return std::any_of(use.channel->lives.begin(), use.channel->lives.end(), [&](const End* end) {
            if ((end->excuses & but_with) != 0 || (end->peer != nullptr && (end->peer->excuses & kKept) != 0)) {
                return false;
            }
            const auto& sends = end->lanes[use.lane].sends;
            // Unsignaled work that fills its share of the send queue is signaled by the worker.
            if (end == use.channel->end && use.channel->ready && sends.size() >= use.channel->sends_max) {
                return true;
            }
            return std::any_of(sends.begin(), sends.end(), [](const Request& request) { return request.signaled; });
        });
    });
}

// Everything that is in flight gets its completion when the session is closed, and nothing is left then.
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
        throw Violation("I1 conservation", fmt::format("{}: {} were submitted, {} completed and {} retired, and nothing is left",
                                                       name_, submitted_, completed_, retired_));
    }
    world_.trace.add("has ended: {} submitted, {} completed, {} retired", submitted_, completed_, retired_);
}

void Application::check_given_back() const {
    for (const std::span<std::byte> bytes : given_back_) {
        if (!has_pattern(bytes, kGivenBack)) {
            throw Violation("I1 conservation", name_ + ": a buffer was written after its request had ended with an error");
        }
    }
}

}  // namespace pollcore::sim
