// The echo service's data thread: it takes completions and sends the received buffers back.
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "echo_service.hpp"

namespace pollcore::daemon {
namespace {

// The bits of a completion's tag: connection 32 | unused 15 | send 1 | buffer 16.
struct Tag {
    std::uint32_t slot = 0;
    std::uint32_t buffer = 0;
    bool send = false;

    [[nodiscard]] std::uint64_t pack() const noexcept {
        return std::uint64_t{slot} << 32 | std::uint64_t{send} << 16 | buffer;
    }
    [[nodiscard]] static Tag unpack(std::uint64_t word) noexcept {
        return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word & 0xffff),
                (word >> 16 & 1) != 0};
    }
};
static_assert(kQueueDepthMax <= 1u << 16, "a buffer's number has 16 bits");

// Whether the session will accept the request later, after a completion, progress of the worker, or the end of the
// handshake.
bool is_momentary(Refusal refusal) noexcept {
    switch (refusal) {
        case Refusal::submission_ring_full:
        case Refusal::completion_ring_full:
        case Refusal::send_queue_full:
        case Refusal::receive_queue_full:
        case Refusal::not_connected:  // the answer to a message that came before the handshake ended on this side (H13)
            return true;
        default: return false;
    }
}

}  // namespace

// noexcept, although an allocation may throw: without memory the service cannot go on.
void EchoService::run() noexcept {
    std::array<Completion, kPollBurst> completions;
    while (!finished()) {
        take_phases();
        const bool draining = draining_.load(std::memory_order_acquire);
        const std::size_t completed = session_.poll(completions);
        for (std::size_t i = 0; i < completed; ++i) {
            complete(completions[i]);
        }
        const std::size_t submitted = submit_waiting();
        if (draining && owed_ == 0 && completed == 0) {
            drained_.store(true, std::memory_order_release);
        }
        if (completed + submitted == 0) {
            wait();
        }
    }
}

// Waits for a completion, or for news_. The next turn of run()'s loop sees all changes that were made before
// drain_event(). A later change makes news_ readable again.
void EchoService::wait() noexcept {
    if (session_.wait(kSpin) || !session_.arm()) {
        return;
    }
    const bool look_again = !with_work_.empty() || stopping_.load(std::memory_order_acquire);
    std::array<pollfd, 2> fds{{{.fd = session_.event_fd(), .events = POLLIN, .revents = 0},
                               {.fd = news_.get(), .events = POLLIN, .revents = 0}}};
    (void)::poll(fds.data(), fds.size(), look_again ? static_cast<int>(kLookAgain.count()) : -1);
    (void)drain_event(news_.get());
}

bool EchoService::finished() noexcept {
    if (!stopping_.load(std::memory_order_acquire)) {
        return false;
    }
    take_phases();
    if (active_ == 0) {
        return true;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!stop_seen_) {
        stop_seen_ = now;
    }
    if (now - *stop_seen_ < kLastCompletions) {
        return false;
    }
    log_error("{}: {} closed connections still miss completions; their buffers are given up", name(), active_);
    return true;
}

// ---- Connections that begin and end ----

void EchoService::take_phases() {
    // Acquire, pairs with the reception's release: the reception stores a phase before it increments the count.
    const std::uint32_t changed = phases_changed_.load(std::memory_order_acquire);
    if (changed == phases_seen_) {
        return;
    }
    phases_seen_ = changed;
    for (std::uint32_t slot = 0; slot < connections_.size(); ++slot) {
        Connection& connection = connections_[slot];
        const Phase phase = connection.phase.load(std::memory_order_acquire);
        if (phase == Phase::opening && !connection.begun) {
            begin(slot);
        } else if (phase == Phase::closed) {
            end(connection, {});
            vacate_if_done(connection);
        }
    }
}

void EchoService::begin(std::uint32_t slot) {
    Connection& connection = connections_[slot];
    connection.begun = true;
    connection.in_flight = 0;
    connection.owed = 0;
    connection.waiting_first = 0;
    connection.waiting_count = 0;
    connection.echoed = 0;
    ++active_;
    for (std::uint32_t buffer = 0; buffer < config_.depth; ++buffer) {
        connection.buffers[buffer].to_send = false;
        enqueue(slot, buffer);
    }
}

// From now on nothing is submitted for the connection. Its requests in flight still complete.
void EchoService::end(Connection& connection, Ending ending) {
    owed_ -= connection.owed;
    connection.owed = 0;
    connection.waiting_count = 0;
    connection.ending = std::move(ending);
    for (Phase phase : {Phase::serving, Phase::opening}) {
        // Does not replace `closed`, which is the last phase that the reception sets. Release: publishes `ending`.
        if (connection.phase.compare_exchange_strong(phase, Phase::ended, std::memory_order_release,
                                                     std::memory_order_relaxed)) {
            connection.phase.notify_all();
            return;
        }
    }
}

void EchoService::vacate_if_done(Connection& connection) noexcept {
    if (connection.in_flight == 0 && connection.phase.load(std::memory_order_acquire) == Phase::closed) {
        connection.begun = false;
        --active_;
        connection.phase.store(Phase::vacant, std::memory_order_release);
    }
}

// ---- Completions ----

void EchoService::complete(const Completion& completion) {
    const Tag tag = Tag::unpack(completion.tag);
    Connection& connection = connections_[tag.slot];
    --connection.in_flight;
    const Phase phase = connection.phase.load(std::memory_order_relaxed);
    if (phase == Phase::ended || phase == Phase::closed) {
        vacate_if_done(connection);
        return;
    }
    if (!completion.ok()) {
        end(connection, ending_of(connection, completion));
        return;
    }
    if (!tag.send) {
        take_message(tag.slot, tag.buffer, completion);
        return;
    }
    --connection.owed;
    --owed_;
    ++connection.echoed;
    connection.buffers[tag.buffer].to_send = false;
    enqueue(tag.slot, tag.buffer);
}

void EchoService::take_message(std::uint32_t slot, std::uint32_t buffer, const Completion& completion) {
    if (draining_.load(std::memory_order_relaxed)) {
        return;  // the message came after the drain began, so nobody answers it
    }
    Connection& connection = connections_[slot];
    Buffer& message = connection.buffers[buffer];
    message.length = completion.byte_len;
    message.with_imm = (completion.flags & kWithImm) != 0;
    message.imm_data = message.with_imm ? completion.imm_data : 0;
    message.to_send = true;
    ++connection.owed;
    ++owed_;
    enqueue(slot, buffer);
}

Ending EchoService::ending_of(const Connection& connection, const Completion& completion) const {
    // A flush is only a consequence of an error. The session knows the cause.
    const Status cause = completion.status == Status::wr_flush_err ? session_.cause(connection.qp) : completion.status;
    if (cause == Status::success || cause == Status::wr_flush_err || cause == Status::qp_closed) {
        return {.failed = false, .why = fmt::format("disconnected, {} messages sent back", connection.echoed)};
    }
    std::string why =
        fmt::format("{} ({}), {} messages sent back", status_name(cause), status_text(cause), connection.echoed);
    // Soft-RoCE reports a message that does not fit as loc_qp_op_err.
    if (completion.from_recv_queue() && (cause == Status::loc_len_err || cause == Status::loc_qp_op_err)) {
        why += fmt::format("; it sent a message longer than message_size_max ({} bytes)", config_.message_size_max);
    }
    return {.failed = true, .why = std::move(why)};
}

// ---- Submissions ----

void EchoService::enqueue(std::uint32_t slot, std::uint32_t buffer) {
    Connection& connection = connections_[slot];
    const std::uint32_t last = connection.waiting_first + connection.waiting_count;
    connection.waiting[last < config_.depth ? last : last - config_.depth] = buffer;
    ++connection.waiting_count;
    if (!connection.with_work) {
        connection.with_work = true;
        with_work_.push_back(slot);
    }
}

std::size_t EchoService::submit_waiting() {
    std::size_t submitted = 0;
    std::size_t kept = 0;
    bool ring_full = false;
    for (const std::uint32_t slot : with_work_) {
        Connection& connection = connections_[slot];
        if (!ring_full) {
            const Refusal refusal = submit_waiting_of(slot, submitted);
            ring_full = refusal == Refusal::submission_ring_full || refusal == Refusal::completion_ring_full;
        }
        connection.with_work = connection.waiting_count > 0;
        if (connection.with_work) {
            with_work_[kept++] = slot;
        }
    }
    with_work_.resize(kept);
    if (ring_full && kept > 1) {
        // Next time, try another connection first.
        std::rotate(with_work_.begin(), with_work_.begin() + 1, with_work_.end());
    }
    return submitted;
}

Refusal EchoService::submit_waiting_of(std::uint32_t slot, std::size_t& submitted) {
    Connection& connection = connections_[slot];
    while (connection.waiting_count > 0) {
        const Refusal refusal = submit(slot, connection.waiting[connection.waiting_first]);
        if (refusal != Refusal::none) {
            if (!is_momentary(refusal)) {
                const Status cause = session_.cause(connection.qp);
                const bool left =
                    refusal == Refusal::qp_in_error && (cause == Status::success || cause == Status::wr_flush_err);
                end(connection, {.failed = !left,
                                 .why = left ? fmt::format("disconnected, {} messages sent back", connection.echoed)
                                             : fmt::format("{} ({}), {} messages sent back", refusal_name(refusal),
                                                           status_text(cause), connection.echoed)});
            }
            return refusal;
        }
        ++submitted;
        ++connection.in_flight;
        connection.waiting_first = connection.waiting_first + 1 < config_.depth ? connection.waiting_first + 1 : 0;
        --connection.waiting_count;
    }
    Phase opening = Phase::opening;
    if (connection.phase.compare_exchange_strong(opening, Phase::serving, std::memory_order_release,
                                                 std::memory_order_relaxed)) {
        connection.phase.notify_all();
    }
    return Refusal::none;
}

Refusal EchoService::submit(std::uint32_t slot, std::uint32_t buffer) {
    const Connection& connection = connections_[slot];
    const Buffer& message = connection.buffers[buffer];
    const std::uint64_t index = std::uint64_t{slot} * config_.depth + buffer;
    WorkRequest request;
    request.tag = Tag{.slot = slot, .buffer = buffer, .send = message.to_send}.pack();
    request.sge = {.addr = region_.addr() + index * stride_, .length = length_max_, .lkey = region_.lkey()};
    request.num_sge = 1;
    request.qp = connection.qp;
    if (!message.to_send) {
        request.opcode = Opcode::recv;
        return session_.try_submit(request);
    }
    request.sge.length = message.length;
    request.num_sge = message.length > 0 ? 1 : 0;
    request.flags = kSignaled;
    request.opcode = message.with_imm ? Opcode::send_with_imm : Opcode::send;
    if (message.with_imm) {
        request.imm_data = message.imm_data;
    }
    return session_.try_submit(request);
}

}  // namespace pollcore::daemon
