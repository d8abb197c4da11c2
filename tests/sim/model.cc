#include "sim/model.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "sim/violation.hpp"

namespace pollcore::sim {
namespace {

[[nodiscard]] std::uint64_t mixed(std::uint64_t z) noexcept {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    return z ^ (z >> 29);
}

[[nodiscard]] bool with_imm(Opcode opcode) noexcept {
    return opcode == Opcode::send_with_imm || opcode == Opcode::rdma_write_with_imm;
}

}  // namespace

std::string causes(std::uint32_t excuses) {
    constexpr std::string_view kWords[] = {
        "its own request",         "the peer's request",     "a planned status",   "it ends",
        "the peer ends",           "packets are lost",       "its device is lost", "its CQ is lost",
        "posts are refused",       "its session closes",     "receives may lack",  "the peer's device is lost",
        "it may not be destroyed", "it may not be modified",
    };
    std::string text;
    for (std::size_t i = 0; i < std::size(kWords); ++i) {
        if ((excuses >> i & 1) != 0) {
            text += (text.empty() ? "" : ", ") + std::string(kWords[i]);
        }
    }
    return text.empty() ? "none" : text;
}

std::string_view opcode_name(Opcode opcode) noexcept {
    switch (opcode) {
        case Opcode::rdma_write: return "RDMA write";
        case Opcode::rdma_write_with_imm: return "RDMA write with immediate";
        case Opcode::send: return "send";
        case Opcode::send_with_imm: return "send with immediate";
        case Opcode::rdma_read: return "RDMA read";
        case Opcode::atomic_cmp_and_swp: return "compare and swap";
        case Opcode::atomic_fetch_and_add: return "fetch and add";
        case Opcode::bind_mw: return "bind";
        case Opcode::local_inv: return "local invalidate";
        case Opcode::recv: return "receive";
        default: return "another";
    }
}

namespace {

[[nodiscard]] CompletionOpcode completes_as(Opcode opcode) noexcept {
    switch (opcode) {
        case Opcode::rdma_write:
        case Opcode::rdma_write_with_imm: return CompletionOpcode::rdma_write;
        case Opcode::rdma_read: return CompletionOpcode::rdma_read;
        case Opcode::atomic_cmp_and_swp: return CompletionOpcode::comp_swap;
        case Opcode::atomic_fetch_and_add: return CompletionOpcode::fetch_add;
        case Opcode::bind_mw: return CompletionOpcode::bind_mw;
        case Opcode::local_inv: return CompletionOpcode::local_inv;
        case Opcode::recv:
        case Opcode::srq_recv: return CompletionOpcode::recv;
        default: return CompletionOpcode::send;
    }
}

/// Whether the request was refused before it was in any queue. Such a request has no place in the order of the queue
/// (runtime/DECISIONS.md, D19), and no other request fails because of it.
[[nodiscard]] bool never_queued(Status status) noexcept {
    return status == Status::post_refused || status == Status::request_refused || status == Status::session_closed;
}

[[nodiscard]] std::string described(const End& end, const Request& request) {
    return fmt::format("{}: request {:#x} ({} of {} bytes{}{})", end.name, request.tag, opcode_name(request.opcode),
                       request.length, request.signaled ? "" : ", unsignaled",
                       request.defect != Defect::none ? ", with a defect" : "");
}

}  // namespace

void fill_pattern(std::span<std::byte> bytes, std::uint64_t pattern) noexcept {
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
        const std::uint64_t word = mixed(pattern + at);
        std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
    }
}

bool has_pattern(std::span<const std::byte> bytes, std::uint64_t pattern) noexcept {
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
        const std::uint64_t word = mixed(pattern + at);
        if (std::memcmp(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at)) != 0) {
            return false;
        }
    }
    return true;
}

bool End::sends_in_flight() const noexcept {
    return std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return !lane.sends.empty(); });
}

bool End::uses_window(std::uint32_t key) const noexcept {
    return std::any_of(lanes.begin(), lanes.end(), [&](const Lane& lane) {
        return std::any_of(lane.sends.begin(), lane.sends.end(),
                           [&](const Request& request) { return request.window_key == key; });
    });
}

End& Model::begin(std::string name, std::size_t lanes) {
    End& end = ends_.emplace_back();
    end.name = std::move(name);
    end.number = ends_.size();
    end.lanes.resize(lanes);
    return end;
}

void Model::connect(End& a, End& b) {
    a.peer = &b;
    b.peer = &a;
}

void Model::inherit(End& end, End& before) {
    for (Datagram& datagram : before.arriving) {
        datagram.lost = true;
    }
    end.arriving = before.arriving;
}

void Model::excuse(End& end, std::uint32_t excuses) {
    if ((end.excuses | excuses) != end.excuses) {
        end.excuses |= excuses;
        trace_.add("end {} may fail from now on: causes {:#x}", end.number, end.excuses);
    }
}

void Model::submitting(End& end, std::size_t lane, const Request& request) {
    if (is_recv(request.opcode)) {
        end.receives.push_back(request);
    } else {
        end.lanes[lane].sends.push_back(request);
        if (request.to != nullptr) {
            End& to = *request.to;
            const auto posted = static_cast<std::uint64_t>(
                std::count_if(to.receives.begin(), to.receives.end(),
                              [&](const Request& receive) { return receive.order <= to.receives_posted; }));
            to.arriving.push_back({.tag = request.tag,
                                   .from = &end,
                                   .length = request.length,
                                   .imm = request.imm,
                                   .with_imm = with_imm(request.opcode),
                                   .pattern = request.pattern,
                                   .room = to.datagrams_found + posted,
                                   .lost = request.way_ends});
        } else if (takes_receive(request.opcode)) {
            end.lanes[lane].messages.push_back({.tag = request.tag,
                                                .length = request.length,
                                                .imm = request.imm,
                                                .with_imm = with_imm(request.opcode),
                                                .of_write = writes(request.opcode),
                                                .too_long = request.defect == Defect::too_long,
                                                .pattern = request.pattern});
        }
    }
    if (request.defect != Defect::none) {
        excuse(end, kOwnRequest);
        if (end.peer != nullptr) {
            excuse(*end.peer, kPeerRequest | kPeerEnding);
        }
    }
}

void Model::refused(End& end, std::size_t lane, const Request& request) {
    if (is_recv(request.opcode)) {
        end.receives.pop_back();
        return;
    }
    end.lanes[lane].sends.pop_back();
    if (request.to != nullptr) {
        std::erase_if(request.to->arriving, [&](const Datagram& datagram) { return datagram.tag == request.tag; });
    } else if (takes_receive(request.opcode)) {
        end.lanes[lane].messages.pop_back();
    }
}

Request Model::completed(End& end, std::size_t lane_index, const Completion& completion, const OnRetired& on_retired) {
    const bool receive = completion.from_recv_queue();
    Lane& lane = end.lanes[lane_index];
    std::deque<Request>& queue = receive ? end.receives : lane.sends;
    const auto found_at =
        std::find_if(queue.begin(), queue.end(), [&](const Request& request) { return request.tag == completion.tag; });
    if (found_at == queue.end()) {
        throw Violation("I1 conservation",
                        fmt::format("{}: a completion with tag {:#x} on its {} queue, where nothing with "
                                    "that tag is in flight: it came twice, or was never submitted",
                                    end.name, completion.tag, receive ? "receive" : "send"));
    }
    if (never_queued(completion.status)) {
        const Request request = *found_at;
        queue.erase(found_at);
        require_cause(end, request, completion);
        if (!receive) {
            std::erase_if(lane.messages, [&](const Message& message) { return message.tag == request.tag; });
            if (request.to != nullptr) {
                std::erase_if(request.to->arriving,
                              [&](const Datagram& datagram) { return datagram.tag == request.tag; });
            }
        }
        return request;
    }
    // The requests before the completed one must be unsignaled, and have succeeded. If one is signaled, its completion
    // was lost or overtaken.
    while (queue.front().tag != completion.tag) {
        const Request first = queue.front();
        if (receive && (end.excuses & kCqLost) != 0) {
            // The completion of the first request is lost. The runtime makes a completion for it when the queue pair
            // has ended.
            const Request request = *found_at;
            queue.erase(found_at);
            return settled(end, lane, request, completion);
        }
        if (first.signaled) {
            throw Violation("I2 order",
                            fmt::format("{} was overtaken by {:#x}, or lost", described(end, first), completion.tag));
        }
        queue.pop_front();
        succeeded(end, lane, first);
        on_retired(first);
    }
    const Request request = queue.front();
    queue.pop_front();
    return settled(end, lane, request, completion);
}

Request Model::settled(End& end, Lane& lane, const Request& request, const Completion& completion) {
    const bool receive = completion.from_recv_queue();
    if (completion.opcode != completes_as(request.opcode) &&
        !(receive && completion.opcode == CompletionOpcode::recv_rdma_with_imm && completion.ok())) {
        throw Violation("I6 fields", fmt::format("{} completed as opcode {}", described(end, request),
                                                 static_cast<int>(completion.opcode)));
    }
    if (completion.ok()) {
        if (!request.signaled) {
            throw Violation("I1 conservation",
                            described(end, request) + " succeeded and made a completion all the same");
        }
        if (receive) {
            found(end, request, completion);
        } else {
            if ((request.opcode == Opcode::rdma_read || is_atomic(request.opcode)) &&
                completion.byte_len != request.length) {
                throw Violation("I6 fields",
                                fmt::format("{} placed {} bytes", described(end, request), completion.byte_len));
            }
            succeeded(end, lane, request);
        }
        return request;
    }
    require_cause(end, request, completion);
    if (request.to != nullptr) {
        for (Datagram& datagram : request.to->arriving) {
            datagram.lost = datagram.lost || datagram.tag == request.tag;
        }
    }
    if (is_atomic(request.opcode)) {
        end.added_perhaps += request.add;
    }
    // A request whose completion the provider lost may have succeeded. The completion that the runtime makes for it
    // therefore does not mark the queue as failed.
    if (completion.status == Status::general_err && (completion.flags & kByRuntime) != 0 &&
        (end.excuses & kCqLost) != 0) {
        return request;
    }
    (receive ? end.receive_failed : lane.failed) = true;
    if (end.peer != nullptr) {
        excuse(*end.peer, kPeerEnding);
    }
    return request;
}

void Model::succeeded(End& end, Lane& lane, const Request& request) {
    if (lane.failed) {
        throw Violation("I2 order", described(end, request) + " succeeded after one before it had failed");
    }
    if (!request.signaled && (end.excuses & kCqLost) != 0) {
        end.added_perhaps += request.add;
        return;  // it may have failed, with its completion lost
    }
    if (request.defect != Defect::none) {
        throw Violation("status", described(end, request) + " succeeded, which it cannot");
    }
    if (writes(request.opcode) && !has_pattern({request.remote, request.length}, request.pattern)) {
        throw Violation("content", described(end, request) + " has succeeded, and its bytes are not at the peer");
    }
    if (request.opcode == Opcode::rdma_read && !has_pattern({request.local, request.length}, request.pattern)) {
        throw Violation("content", described(end, request) + " has succeeded, and the peer's bytes are not here");
    }
    if (is_atomic(request.opcode)) {
        end.added += request.add;
    }
    if (request.to == nullptr && takes_receive(request.opcode)) {
        ++end.messages_done;
        if (std::find(lane.passed_over.begin(), lane.passed_over.end(), request.tag) != lane.passed_over.end()) {
            throw Violation("content",
                            described(end, request) + " has succeeded, and the peer found one behind it and not it");
        }
    }
}

// A receive must hold the peer's next message.
void Model::found(End& end, const Request& receive, const Completion& completion) {
    if (end.receive_failed) {
        throw Violation("I2 order", described(end, receive) + " succeeded after one before it had failed");
    }
    if (receive.defect != Defect::none && completion.opcode != CompletionOpcode::recv_rdma_with_imm &&
        completion.byte_len != 0) {
        throw Violation("status", described(end, receive) + " succeeded, which it cannot");
    }
    if (end.datagrams) {
        return found_datagram(end, receive, completion);
    }
    static std::vector<Lane> none;
    const bool imm = (completion.flags & kWithImm) != 0;
    const bool of_write = completion.opcode == CompletionOpcode::recv_rdma_with_imm;
    const auto fits = [&](const Message& message) {
        return !message.too_long && completion.byte_len == message.length && imm == message.with_imm &&
               (!imm || completion.imm_data == message.imm) && of_write == message.of_write &&
               (of_write || has_pattern({receive.local, message.length}, message.pattern));
    };
    std::string next;
    for (Lane& lane : end.peer != nullptr ? end.peer->lanes : none) {
        if (lane.messages.empty()) {
            continue;
        }
        // Looks past the first message if messages before the found one may have been refused and never sent. The
        // sender may not know of the refusal yet.
        const bool lost = (end.excuses & kCqLost) != 0;  // a message may be lost with the completion of its receive
        const bool all = lost || (end.peer->excuses & (kPostRefused | kEnding | kSessionClosing)) != 0;
        const auto found_at =
            std::find_if(lane.messages.begin(), all ? lane.messages.end() : lane.messages.begin() + 1, fits);
        if (found_at != lane.messages.end() && fits(*found_at)) {
            for (auto passed = lane.messages.begin(); passed != found_at && !lost; ++passed) {
                lane.passed_over.push_back(passed->tag);
            }
            lane.messages.erase(lane.messages.begin(), found_at + 1);
            ++end.peer->messages_found;
            return;
        }
        const Message& message = lane.messages.front();
        next += fmt::format("; the peer's next is {} bytes of {:#x}, immediate {} {:#x}{}{}", message.length,
                            message.pattern, message.with_imm, message.imm, message.of_write ? ", of a write" : "",
                            message.too_long ? ", too long" : "");
    }
    throw Violation("content",
                    fmt::format("{} holds {} bytes, immediate {} {:#x}{}{}", described(end, receive),
                                completion.byte_len, imm, imm ? completion.imm_data : 0, of_write ? ", of a write" : "",
                                next.empty() ? "; the peer sent nothing" : next));
}

// ---- Datagrams ----

bool Model::may_be_lost(const End& end, const Datagram& datagram) const noexcept {
    return packets_lost || datagram.lost || (end.excuses | datagram.from->excuses) != 0;
}

// The datagram must be one that was sent to this queue pair. If no packet can be late, earlier datagrams of its sender
// that were not found are lost. Without an excuse, a datagram is lost only if all receives that were posted before it
// are taken.
void Model::found_datagram(End& end, const Request& receive, const Completion& completion) {
    const bool imm = (completion.flags & kWithImm) != 0;
    const auto at = std::find_if(end.arriving.begin(), end.arriving.end(), [&](const Datagram& datagram) {
        return completion.byte_len == datagram.length + kGrhBytes && imm == datagram.with_imm &&
               (!imm || completion.imm_data == datagram.imm) &&
               has_pattern({receive.local + kGrhBytes, datagram.length}, datagram.pattern);
    });
    if (at == end.arriving.end() || (completion.flags & kDatagram) == 0) {
        throw Violation("content",
                        fmt::format("{} holds a datagram of {} bytes, which nobody sent, or which came before",
                                    described(end, receive), completion.byte_len));
    }
    const Datagram found = *at;
    const auto before = [&, left = at - end.arriving.begin()](const Datagram& datagram) mutable {
        return left-- > 0 && datagram.from->qp_num == found.from->qp_num;
    };
    if (!packets_late) {
        auto earlier = before;
        for (const Datagram& datagram : end.arriving) {
            if (earlier(datagram) && !may_be_lost(end, datagram) && end.datagrams_found < datagram.room) {
                throw Violation(
                    "content",
                    fmt::format("datagram {:#x} to {} was lost, though {} receives had been posted and {} taken",
                                datagram.tag, end.name, datagram.room, end.datagrams_found));
            }
        }
        auto passed = before;
        std::deque<Datagram> left;
        for (const Datagram& datagram : end.arriving) {
            if (!passed(datagram) && datagram.tag != found.tag) {
                left.push_back(datagram);
            }
        }
        end.arriving = std::move(left);
    } else {
        end.arriving.erase(at);
    }
    for (End& life : ends_) {
        if (life.qp_num == end.qp_num) {
            std::erase_if(life.arriving, [&](const Datagram& datagram) { return datagram.tag == found.tag; });
        }
    }
    ++end.datagrams_found;
    end.found_from = found.from;
}

// ---- Shared receive queues ----

SharedQueue& Model::begin_shared(std::string name, SrqHandle handle) {
    SharedQueue& queue = shared_.emplace_back();
    queue.name = std::move(name);
    queue.handle = handle;
    return queue;
}

void Model::submitting(SharedQueue& queue, Request request) {
    request.order = ++queue.submitted;
    queue.receives.push_back(request);
}

void Model::refused(SharedQueue& queue) {
    queue.receives.pop_back();
    --queue.submitted;
}

namespace {

/// The excuses that explain a shared receive whose completion names no queue pair.
[[nodiscard]] std::uint32_t causes_without_a_queue_pair(Status status) noexcept {
    switch (status) {
        case Status::srq_closed: return kEnding | kSessionClosing;
        case Status::session_closed: return kSessionClosing;
        case Status::request_refused: return kEnding | kSessionClosing | kDeviceLost;
        case Status::device_removed:
        case Status::post_refused: return kDeviceLost;
        default: return 0;
    }
}

}  // namespace

Request Model::completed(SharedQueue& queue, End* end, const Completion& completion) {
    const auto at = std::find_if(queue.receives.begin(), queue.receives.end(),
                                 [&](const Request& request) { return request.tag == completion.tag; });
    if (at == queue.receives.end()) {
        throw Violation("I1 conservation",
                        fmt::format("{}: a completion with tag {:#x}, which is not in flight: it came twice, or was "
                                    "never submitted",
                                    queue.name, completion.tag));
    }
    const Request request = *at;
    queue.receives.erase(at);
    const std::string which = fmt::format("{}: receive {:#x}", queue.name, request.tag);
    if (completion.srq != queue.handle || !completion.from_recv_queue()) {
        throw Violation("I6 fields", which + " completed as one of another queue");
    }
    const bool by_runtime = (completion.flags & kByRuntime) != 0;
    // A receive that a queue pair took may have been lost with the queue pair, its CQ or its device.
    const bool may_be_lost = (queue.excuses & (kCqLost | kDeviceLost | kKept | kModifyFails)) != 0;
    if (by_runtime) {  // no message took it
        const std::uint32_t causes_of_it = causes_without_a_queue_pair(completion.status);
        if ((queue.excuses & causes_of_it) == 0) {
            throw Violation("status", fmt::format("{} ended with {}, for which there is no cause (known: {})", which,
                                                  status_name(completion.status), causes(queue.excuses)));
        }
        if (completion.status == Status::srq_closed && request.order < queue.taken && !may_be_lost) {
            throw Violation(
                "I1 conservation",
                which + " was taken, since a later one was, and did not complete before the queue was closed");
        }
        return request;
    }
    if (end == nullptr) {
        throw Violation("I6 fields", which + " completed and names no queue pair of this side");
    }
    if (request.order < end->shared_taken && !may_be_lost) {
        throw Violation("I2 order", fmt::format("{} was taken by {} after a later one", which, end->name));
    }
    end->shared_taken = request.order;
    queue.taken = std::max(queue.taken, request.order);
    if (completion.ok()) {
        found(*end, request, completion);
        return request;
    }
    require_cause(*end, request, completion);
    end->receive_failed = true;
    if (end->peer != nullptr) {
        excuse(*end->peer, kPeerEnding);
    }
    return request;
}

std::size_t Model::over(const SharedQueue& queue) const {
    if (!queue.receives.empty() && (queue.excuses & kKept) == 0) {
        throw Violation("I1 conservation",
                        fmt::format("{}: receive {:#x} never completed", queue.name, queue.receives.front().tag));
    }
    return queue.receives.size();
}

void Model::require_cause(const End& end, const Request& request, const Completion& completion) const {
    if (!explained(end, request, completion)) {
        throw Violation(
            "status", fmt::format("{} ended with {}, for which there is no cause (known: {})", described(end, request),
                                  status_name(completion.status), causes(end.excuses)));
    }
}

bool Model::explained(const End& end, const Request& request, const Completion& completion) const {
    const bool receive = is_recv(request.opcode);
    const auto has = [&](std::uint32_t excuses) { return (end.excuses & excuses) != 0; };
    const bool by_runtime = (completion.flags & kByRuntime) != 0;
    if (std::find(end.injected.begin(), end.injected.end(), completion.status) != end.injected.end()) {
        return true;
    }
    const bool peer_injected = end.peer != nullptr && (end.peer->excuses & kInjected) != 0;
    switch (completion.status) {
        case Status::wr_flush_err:
            return end.excuses != 0 || end.receive_failed ||
                   std::any_of(end.lanes.begin(), end.lanes.end(), [](const Lane& lane) { return lane.failed; });
        case Status::loc_prot_err: return request.defect == Defect::local_key;
        case Status::loc_len_err: return receive && has(kPeerRequest);
        case Status::rem_access_err: return !receive && request.defect == Defect::remote_key;
        case Status::rem_inv_req_err: return !receive && (request.defect == Defect::too_long || peer_injected);
        case Status::rem_op_err: return !receive && (has(kPeerEnding) || peer_injected);
        case Status::retry_exc_err:
            return !receive &&
                   (has(kLossy | kPeerEnding | kPeerDeviceLost | kDeviceLost) || (has(kOwnRequest) && packets_lost));
        case Status::rnr_retry_exc_err:
            return !receive && takes_receive(request.opcode) && !end.rnr_for_ever && has(kShortOfReceives);
        case Status::post_refused: return by_runtime && has(kPostRefused | kDeviceLost);
        case Status::request_refused:
            return by_runtime && (request.way_ends || has(kEnding | kSessionClosing | kCqLost | kDeviceLost));
        case Status::qp_closed: return by_runtime && has(kEnding | kSessionClosing | kCqLost | kDeviceLost);
        case Status::session_closed: return by_runtime && has(kSessionClosing);
        case Status::device_removed: return by_runtime && has(kDeviceLost);
        case Status::fatal_err:
        case Status::general_err: return has(kCqLost);
        default: return false;
    }
}

std::uint32_t Model::retired(End& end, std::size_t lane_index, std::uint32_t more, const OnRetired& on_retired) {
    Lane& lane = end.lanes[lane_index];
    std::uint32_t ended = 0;
    // Stops at a signaled request: its completion was not taken yet, and more retired requests may follow it.
    while (ended < more && !lane.sends.empty() && !lane.sends.front().signaled) {
        const Request first = lane.sends.front();
        lane.sends.pop_front();
        ++ended;
        succeeded(end, lane, first);
        on_retired(first);
    }
    return ended;
}

std::size_t Model::over(End& end, std::size_t lane_index, const OnRetired& on_retired) {
    Lane& lane = end.lanes[lane_index];
    if ((end.excuses & kKept) != 0) {
        return lane.sends.size() + (lane_index == 0 ? end.receives.size() : 0);
    }
    while (!lane.sends.empty()) {
        const Request first = lane.sends.front();
        if (first.signaled) {
            throw Violation("I1 conservation", described(end, first) + " never completed");
        }
        lane.sends.pop_front();
        succeeded(end, lane, first);
        on_retired(first);
    }
    if (lane_index == 0 && !end.receives.empty()) {
        throw Violation("I1 conservation", described(end, end.receives.front()) + " never completed");
    }
    return 0;
}

void Model::at_end(const End& end, std::uint64_t word) const {
    const End* adds = end.peer;
    if (adds == nullptr || ((end.excuses | adds->excuses) & kKept) != 0) {
        return;
    }
    if (word < adds->added || word > adds->added + adds->added_perhaps) {
        throw Violation("content", fmt::format("{}: its word holds {}, where {} were added for certain and {} perhaps",
                                               end.name, word, adds->added, adds->added_perhaps));
    }
}

bool Model::rests(const End& end) const {
    if (end.datagrams) {
        return packets_late || std::all_of(end.arriving.begin(), end.arriving.end(), [&](const Datagram& datagram) {
                   return may_be_lost(end, datagram) || end.datagrams_found >= datagram.room;
               });
    }
    return end.messages_done <= end.messages_found || end.peer == nullptr || end.peer->receive_failed ||
           (end.peer->excuses & ~kPeerEnding & ~kShortOfReceives) != 0;
}

void Model::at_rest(const End& end) const {
    if (!rests(end) && end.datagrams) {
        throw Violation("content", end.name + " has receives left, and datagrams to it were lost");
    }
    if (!rests(end)) {
        throw Violation("content", fmt::format("{} sent {} messages with success, and its peer found {}", end.name,
                                               end.messages_done, end.messages_found));
    }
}

}  // namespace pollcore::sim
