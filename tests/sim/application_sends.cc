// The sends of an application: over connected queue pairs, to any UD queue pair, and binds of its memory windows.
#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "sim/application.hpp"
#include "sim/tags.hpp"
#include "sim/violation.hpp"
#include "sim/world.hpp"

namespace pollcore::sim {
namespace {

constexpr std::uint32_t kNoKey = 0xdead0000;  // no device here gives such a key

WorkRequest as_work(const Channel& channel, const Request& request) {
    WorkRequest work;
    work.tag = request.tag;
    work.qp = channel.qp.handle();
    work.opcode = request.opcode;
    work.flags = request.signaled ? kSignaled : 0;
    work.sge = {reinterpret_cast<std::uintptr_t>(request.local), request.length,
                request.defect == Defect::local_key ? kNoKey : channel.memory.lkey()};
    work.num_sge = 1;
    return work;
}

}  // namespace

// The handle of an earlier life must be refused.
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

bool Application::send_one(Use& use) {
    Channel& channel = *use.channel;
    if (channel.end == nullptr || (!channel.datagram && (channel.peer == nullptr || channel.peer->end == nullptr)) ||
        (!channel.ready && !random_.one_in(8))) {
        return false;
    }
    if (use.life != channel.end) {
        begin_life(use);
    }
    // Sessions that share the queue pair write to different places in the peer's memory.
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
    constexpr std::array<Opcode, 8> kOpcodes{Opcode::send,          Opcode::send,
                                             Opcode::send_with_imm, Opcode::rdma_write,
                                             Opcode::rdma_write,    Opcode::rdma_write_with_imm,
                                             Opcode::rdma_read,     Opcode::atomic_fetch_and_add};
    End& end = *channel.end;
    Request request = begun(channel, slot);
    request.defect = world_.take_defect(channel);
    request.opcode = request.defect == Defect::too_long     ? Opcode::send
                     : request.defect == Defect::remote_key ? Opcode::rdma_write
                                                            : random_.pick(kOpcodes);
    request.length = random_.one_in(8) ? random_.between(1, Channel::kSlotBytes) : random_.below(65);
    request.signaled = use.unsignaled >= 6 || !random_.one_in(3);
    request.pattern = end.number << 40 | std::uint64_t{use.lane} << 36 | next_sequence_ << 9;
    request.imm = static_cast<std::uint32_t>(random_.next());
    // The messages of several sessions on one queue pair must differ.
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

    WorkRequest work = as_work(channel, request);
    Channel& peer = *channel.peer;
    work.rkey = peer.memory.rkey();
    if (request.defect == Defect::remote_key) {
        work.rkey = peer.dead_keys.empty()
                        ? kNoKey
                        : peer.dead_keys[random_.below(static_cast<std::uint32_t>(peer.dead_keys.size()))];
    } else if (writes(request.opcode) && peer.window_key != 0 && peer.window_life == peer.end && peer.ready &&
               random_.one_in(2)) {
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

Request Application::begun(const Channel& channel, std::uint32_t slot) const {
    Request request;
    request.tag = tag_of(channel);
    request.order = next_sequence_;
    request.slot = slot;
    request.local = channel.send_slot(slot);
    return request;
}

std::uint64_t Application::tag_of(const Channel& channel) const noexcept {
    return std::uint64_t{channel.index} << kChannelShift | (channel.lives.size() - 1) << kLifeShift |
           (next_sequence_ & kSequenceMask);
}

// Binds the channel's window to the memory that the peer writes to, or ends the access through the window's rkey. An
// invalidation ends the access for a type 2 window, and a new bind does so for a type 1 window. Does nothing while a
// request uses the window.
bool Application::change_window(Use& use, std::uint32_t slot) {
    Channel& channel = *use.channel;
    if (!channel.ready || channel.window_busy || channel.window_in_doubt == channel.end ||
        (channel.window_key != 0 && channel.peer->end->uses_window(channel.window_key))) {
        return false;
    }
    Request request = begun(channel, slot);
    request.opcode =
        channel.window_key != 0 && channel.window.type() == WindowType::type_2 ? Opcode::local_inv : Opcode::bind_mw;
    request.window_key = std::exchange(channel.window_key, 0);
    WorkRequest work;
    work.tag = request.tag;
    work.qp = channel.qp.handle();
    work.opcode = request.opcode;
    work.flags = kSignaled;
    if (request.opcode == Opcode::local_inv) {
        work.invalidate_rkey = request.window_key;
    } else {
        work.bind = WindowBind(channel.window.handle(), channel.memory.handle(),
                               std::uint64_t{Channel::kSlots} * Channel::kSlotBytes);
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

void Application::window_changed(Channel& channel, const End& end, const Request& request,
                                 const Completion& completion) {
    channel.window_busy = false;
    const bool type_2 = channel.window.type() == WindowType::type_2;
    if (!completion.ok()) {
        const bool posted = completion.status != Status::post_refused && completion.status != Status::request_refused;
        if (!posted && (!type_2 || &end == channel.end)) {
            channel.window_key = request.window_key;  // the old key stays valid
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

// Sends to any UD queue pair of either side.
bool Application::send_datagram(Use& use, std::uint32_t slot) {
    Channel& channel = *use.channel;
    Channel& to = *world_.datagrams()[random_.below(static_cast<std::uint32_t>(world_.datagrams().size()))];
    if (to.end == nullptr || to.closed || !channel.ways[to.runtime].valid()) {
        return false;
    }
    Request request = begun(channel, slot);
    request.defect = world_.take_defect(channel);
    request.opcode = random_.one_in(3) ? Opcode::send_with_imm : Opcode::send;
    request.length = random_.one_in(8) ? random_.between(8, Channel::kSlotBytes - kGrhBytes) : random_.between(8, 64);
    request.signaled = use.unsignaled >= 6 || !random_.one_in(3);
    request.pattern = channel.end->number << 40 | next_sequence_ << 9;
    request.imm = static_cast<std::uint32_t>(random_.next());
    request.to = to.end;
    request.way_ends = channel.way_ends[to.runtime];
    fill_pattern({request.local, request.length}, request.pattern);
    WorkRequest work = as_work(channel, request);
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
    const bool carries =
        !local && request.opcode != Opcode::rdma_read && request.opcode != Opcode::atomic_fetch_and_add;
    if (carries && request.defect == Defect::none && request.length <= channel.inline_max && random_.one_in(2)) {
        const std::span<const std::byte> payload{request.local, request.length};
        refusal = random_.one_in(2) ? session_.try_submit_inline(work, payload)
                                    : session_.try_submit(work.with_inline(payload));
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
    if (!channel.ready) {  // if the peer's end is not ready yet, these packets are lost
        world_.model.excuse(end, kLossy);
        if (end.peer != nullptr) {
            world_.model.excuse(*end.peer, kPeerEnding);
        }
    }
    use.refusal = Refusal::none;
    world_.trace.add(
        request.signaled ? "submits {0:#x}: {3} of {1} bytes" : "submits {0:#x}: {3} of {1} bytes, unsignaled",
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

// A refusal is right only if the reason that it names exists.
void Application::on_refusal(Use& use, const End& end, const Request& request, Refusal refusal) {
    const Channel& channel = *use.channel;
    if (refusal != std::exchange(use.refusal, refusal)) {
        world_.trace.add("is refused {0:#x}: {3}", request.tag, 0, 0, refusal_name(refusal));
    }
    bool right = false;
    switch (refusal) {
        case Refusal::submission_ring_full: right = true; break;  // room is known only after the worker's next look
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
        throw Violation("I3 room",
                        fmt::format("{} was refused a request on {} with {}, and has {} sends and {} receives in "
                                    "flight there (causes: {}; the queue pair's is {})",
                                    name_, end.name, refusal_name(refusal), use.sends, end.receives.size(),
                                    causes(end.excuses), status_name(session_.cause(channel.qp.handle()))));
    }
}

}  // namespace pollcore::sim
