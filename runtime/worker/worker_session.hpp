// The worker's end of a session: its two rings, and the books of its requests in flight. Nobody else writes either.
//
// A request is taken only when its completion has a place in the completion ring (I3), so completing never waits.
//
// A completion may be written into the line of its request, instead of the completion ring (D50). A session marks a
// request if it has no other in that send queue (CompletionInbox::expect_reply), one at a time. The request's line is
// in the worker's cache, and the application looks there as well as in the ring, so an answer there moves no other
// line. The answer may be written until the application has been told that the slot is free again. The worker puts off
// telling it while a marked request is in flight, but not for more than a quarter of the ring, not in a small ring, and
// not when it falls asleep. A failure, and a completion that comes after the telling, go by the ring and say so
// (kNotInLine), so that the session always knows whether it still has to look at the line.
//
// Thread safety: made by the control thread, the worker's from add_session until the answer to remove_session, but for
// refused().
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <infiniband/verbs.h>

#include "base/bare.hpp"
#include "base/planted.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/own_lines.hpp"
#include "session/completion_opcode.hpp"
#include "session/layout.hpp"
#include "session/request_head.hpp"
#include "worker/in_flight.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class WorkerQp;

/// A session's part in one queue pair (D18).
class Share {
public:
    Share() = default;
    Share(WorkerQp& qp, QpHandle handle, std::uint32_t send_depth, std::uint32_t recv_depth)
        : qp_(&qp), handle_(handle), send_depth_(send_depth), recv_depth_(recv_depth) {}

    /// Null: it has none.
    [[nodiscard]] WorkerQp* qp() const noexcept { return qp_; }
    [[nodiscard]] QpHandle handle() const noexcept { return handle_; }
    [[nodiscard]] std::uint32_t send_room() const noexcept { return send_depth_ - std::min(sends_, send_depth_); }
    [[nodiscard]] bool sends_full() const noexcept { return sends_ >= send_depth_; }
    [[nodiscard]] bool recvs_full() const noexcept { return recvs_ >= recv_depth_; }

    void take_sends(std::uint32_t n) noexcept { sends_ += n; }
    void end_sends(std::uint32_t n) noexcept { sends_ -= n; }
    void take_recv() noexcept { ++recvs_; }
    void end_recv() noexcept { --recvs_; }
    /// Counts a retired send. Returns how many there were, with this one, modulo 2^32.
    std::uint32_t retire() noexcept { return ++retired_; }

private:
    WorkerQp* qp_ = nullptr;
    QpHandle handle_;
    std::uint32_t send_depth_ = 0;
    std::uint32_t recv_depth_ = 0;
    std::uint32_t sends_ = 0;  // in flight
    std::uint32_t recvs_ = 0;
    std::uint32_t retired_ = 0;
};
static_assert(sizeof(Share) == 32);

/// How much the sessions of one other process may take of a worker together: a quantum in each step, whatever was left
/// of the step before (deficit round robin). Belongs to the worker.
class ClientShare {
public:
    /// A request costs this, or its bytes if these are more.
    static constexpr std::int64_t kRequest = 4096;

    /// `id`: of the process; 0 is the worker's own.
    explicit ClientShare(std::uint32_t id = 0) : id_(id) {}

    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
    /// True: something is left in this step. Each step gets `quantum`.
    [[nodiscard]] bool left(std::uint64_t step, std::int64_t quantum) noexcept {
        if (step_ != step) {
            step_ = step;
            left_ = std::min(left_ + quantum, quantum);
        }
        return left_ > 0;
    }
    void use(std::uint64_t bytes) noexcept { left_ -= std::max(kRequest, static_cast<std::int64_t>(bytes)); }

private:
    std::uint32_t id_;
    std::uint64_t step_ = 0;  // the step that left_ belongs to
    std::int64_t left_ = 0;   // negative: a message was longer than the quantum; the debt is carried over
};

class alignas(kCacheLine) WorkerSession {
public:
    struct Options {
        std::uint32_t id = 0;             ///< the control thread's name for it; an index is used again
        ClientShare* client = nullptr;    ///< share of the session's process; null: this process, which has no limit
        int application_fd = -1;          ///< its application sleeps on it; -1: never
        bool application_socket = false;  ///< application_fd is a socket to another process, no eventfd
        bool device_time = false;         ///< SessionOptions::device_time
    };
    WorkerSession(void* block, const SessionLayout& layout, const Options& options);

    [[nodiscard]] const Options& options() const noexcept { return options_; }
    /// At its worker.
    [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
    void set_index(std::uint32_t index) noexcept { index_ = index; }
    /// Requests that its library should not have let through. Any thread.
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.value(); }

    // ---- Requests ----

    [[nodiscard]] const RingConsumer<WorkRequest>& submissions() const noexcept { return submissions_; }
    /// The first `n` slots are taken.
    void release(std::size_t n) noexcept {
        if (reply_at_ == 0) [[likely]] {
            submissions_.release(n);
        } else {
            submissions_.release_later(n);
        }
    }
    /// There was nothing to take: tells the application of freed slots, if that was put off and no marked request is in
    /// flight.
    void release_rest() noexcept {
        if (submissions_.unpublished() && reply_at_ == 0) {
            submissions_.publish();
        }
    }
    /// Tells the application of all freed slots, even if that was to be put off.
    void release_all() noexcept { submissions_.publish(); }

    /// How many of `wanted` requests may be taken, whatever they are, so that each one's completion has a place (I3).
    /// Counts what is in flight, not slots (D13).
    [[nodiscard]] [[gnu::always_inline]] std::uint32_t completion_room(std::uint32_t wanted) noexcept {
        const std::size_t owed = std::size_t{in_flight_} + pooled_posted_;
        const std::size_t slots = completions_.reserve((owed + wanted) << wide_) >> wide_;
        return static_cast<std::uint32_t>(std::min(slots - std::min(owed, slots), std::size_t{wanted}));
    }
    /// False: the process has had its share of this step. Its sessions' requests stay in their rings until the next, so
    /// the worker keeps nothing for it. `taken`: slots of this step that release() has not been told of.
    [[nodiscard]] bool has_share_left(const Turn& turn, std::size_t taken) noexcept {
        if (options_.client->left(turn.number(), std::int64_t{turn.options.submit_burst} * ClientShare::kRequest))
            [[likely]] {
            return true;
        }
        count_throttled(taken);
        return false;
    }

    [[nodiscard]] Share& share(std::size_t qp_index) noexcept { return shares_[qp_index]; }
    void open_share(WorkerQp& qp, QpHandle handle, std::uint32_t send_depth, std::uint32_t recv_depth) noexcept;
    void close_share(std::size_t qp_index) noexcept { shares_[qp_index] = Share{}; }
    void prefetch_share(std::size_t qp_index) const noexcept { __builtin_prefetch(&shares_.data()[qp_index], 1); }

    /// Requests are in flight from here on until they complete or retire.
    void take_sends(Share& share, std::uint32_t n) noexcept {
        if (kAdmission) {
            share.take_sends(n);
            in_flight_ += n;
        }
    }
    /// One of them is unsignaled.
    void take_unsignaled() noexcept { ++unsignaled_; }
    void take_recv(Share& share) noexcept {
        share.take_recv();
        ++in_flight_;
    }
    void take_shared_recv() noexcept { ++in_flight_; }
    void take_pooled(std::uint32_t n) noexcept { pooled_posted_ += n; }
    void end_pooled() noexcept { --pooled_posted_; }
    /// A request that was taken is not posted, and ends as a refused one.
    void give_up(Turn& turn, Share& share, const WorkRequest& request, Status status) noexcept;

    /// True: the request takes the last place that the session has, so it must have a signal. Then a session that gets
    /// a request refused for want of a place always has a completion or a retirement to wait for.
    [[nodiscard]] bool must_signal(const Share& share) const noexcept {
        return !planted(Bug::wedged) &&
               (share.sends_full() || in_flight_ >= completion_slots_ || unsignaled_ > completion_slots_ / 2);
    }
    [[nodiscard]] std::uint32_t in_flight() const noexcept { return in_flight_; }
    /// Receives of its pools that wait for a message.
    [[nodiscard]] std::uint32_t pooled_posted() const noexcept { return pooled_posted_; }
    [[nodiscard]] bool idle() const noexcept { return in_flight_ == 0 && pooled_posted_ == 0; }

    /// The request in the i-th slot, which is being taken, is marked.
    void expect_reply(std::size_t i) noexcept {
        static_assert(kSlotsPerWorkRequestMax <= RingConsumer<WorkRequest>::kAnsweredInFrom * 3 / 4,
                      "room for any request beside what is put off");
        const std::uint64_t index = submissions_.released() + i;
        reply_at_ = index + 1;
        submissions_.prefetch(index);  // fetched from the application, which watches it, while the device works
    }
    [[nodiscard]] bool expects_reply() const noexcept { return reply_at_ != 0; }
    /// True: the next look at the session is to be left out. It was answered in its request's line, and its application
    /// needs a moment to see that and to submit again. A look that comes too early is harmful (D16).
    [[nodiscard]] bool rests() noexcept {
        if (rest_ == 0) [[likely]] {
            return false;
        }
        --rest_;
        return true;
    }
    /// A request whose latency is to be followed was taken. The worker follows one of a session at a time, to its
    /// completion.
    void begin_sample(Turn& turn, InFlightEntry& entry, std::uint32_t submitted_at) noexcept;
    [[nodiscard]] bool sampling() const noexcept { return sampling_; }

    // ---- Completions ----

    void prefetch_completions() const noexcept { completions_.prefetch(); }
    [[nodiscard]] bool wide() const noexcept { return wide_; }
    /// Slots of the completion ring that were written, modulo 2^32.
    [[nodiscard]] std::uint32_t completions_written() const noexcept {
        return static_cast<std::uint32_t>(completions_.produced());
    }

    /// Ends a request of a queue pair's send queue or receive queue, as `completion` says. `datagram`: the work
    /// completion, if a datagram was received.
    [[gnu::always_inline]] void complete(Turn& turn, std::size_t qp_index, const InFlightEntry& entry,
                                         Completion& completion, bool from_recv_queue,
                                         const ibv_wc* datagram) noexcept {
        completion.tag = entry.tag;
        std::uint32_t sampled_at = 0;
        if ((entry.flags & InFlightEntry::kSampled) != 0) [[unlikely]] {
            sampled_at = end_sample(turn, completion.ok());
            std::memcpy(completion.sampled_at, &sampled_at, sizeof(sampled_at));
        }
        // The completion first, for the application waits for it. Nobody else sees the rest.
        if (!entry.replies_in_line()) [[likely]] {
            publish(turn, completion, datagram);
        } else if (!completion.ok() || !reply(turn, completion.byte_len, sampled_at)) {
            end_reply(completion);
            publish(turn, completion, nullptr);
        }
        settle(qp_index, entry, from_recv_queue);
    }
    /// Ends a receive of a shared receive queue.
    void complete_shared_recv(Turn& turn, const Completion& completion, const ibv_wc* datagram) noexcept {
        publish(turn, completion, datagram);
        --in_flight_;
    }
    /// Delivers a message, or the end of a queue pair, with a buffer of a receive pool or a record of a write ring.
    void hand_out(Turn& turn, const Completion& completion, const ibv_wc* datagram) noexcept {
        publish(turn, completion, datagram);
    }
    /// Ends an unsignaled request of a send queue that has succeeded. It may have had a signal of the worker's own.
    [[gnu::always_inline]] void retire(Turn& turn, std::size_t qp_index, const InFlightEntry& entry) noexcept {
        settle(qp_index, entry, false);
        if ((entry.flags & InFlightEntry::kSampled) != 0) [[unlikely]] {
            (void)end_sample(turn, false);  // nobody knows when it ended, only that a later one has
        }
        Share& share = shares_[qp_index];
        ++retired_;
        // Release, with the acquire in Accounts::refresh_retired: the device is done with the buffer.
        const RetiredWord word{.generation = share.handle().generation, .count = share.retire()};
        retired_counts_[qp_index].store(word.pack(), std::memory_order_release);
        header_->retired.store(retired_, std::memory_order_release);
        turn.counters.retired.add();
        tell(turn);  // the application may wait for the room
    }
    /// Counts a bad request that has no completion, and that the session's library should not have let through.
    void count_refused() noexcept { refused_.add(); }
    /// Completes a request that was not taken, with `status`.
    void refuse(Turn& turn, const WorkRequest& request, Status status) noexcept;

    // ---- Completions of ordinary requests (ordinary.cc), which end with success, many at a time ----

    /// How many of `wanted` completions may be written before publish_written().
    [[nodiscard]] std::uint32_t write_room(std::uint32_t wanted) noexcept {
        return kAdmission ? static_cast<std::uint32_t>(completions_.reserve(wanted)) : wanted;
    }
    [[gnu::always_inline]] void write(std::size_t i, std::uint64_t tag, std::uint64_t qp_bits, std::uint32_t byte_len,
                                      Opcode opcode) noexcept {
        completions_.write(i, [&](Completion& slot) {
            Word* const words = words_of(slot);
            words[0] = tag;
            words[1] = std::uint64_t{byte_len} << 32 | qp_bits;
            words[2] = 0;
            return std::uint64_t{static_cast<std::uint8_t>(kSendCompletions[static_cast<std::uint8_t>(opcode)])} << 8;
        });
    }
    void publish_written(Turn& turn, std::uint32_t n) noexcept {
        completions_.commit(n);
        turn.counters.delivered.add(n);
        tell(turn);
    }
    void end_sends(std::size_t qp_index, std::uint32_t n) noexcept {
        if (kAdmission) {
            shares_[qp_index].end_sends(n);
            in_flight_ -= n;
        }
    }
    /// Completes the marked request in its line. False: the completion has to go by the ring.
    [[nodiscard]] [[gnu::always_inline]] bool complete_in_line(Turn& turn, std::size_t qp_index,
                                                               std::uint32_t byte_len) noexcept {
        if (!reply(turn, byte_len, 0)) {
            return false;
        }
        shares_[qp_index].end_sends(1);
        --in_flight_;
        return true;
    }

    // ---- What the session may know of queue pairs and shared receive queues ----

    void publish_limits(std::size_t qp_index, QpLimitsWord limits, MessageLimitsWord longest) noexcept {
        // Relaxed: the status that follows publishes them.
        records_[qp_index].limits.store(limits.pack(), std::memory_order_relaxed);
        records_[qp_index].longest.store(longest.pack(), std::memory_order_relaxed);
    }
    void publish_status(std::size_t qp_index, const QpStatusWord& status) noexcept {
        // Release, with the acquire in SessionCore::admit: the limits that were published before belong to this status.
        records_[qp_index].status.store(status.pack(), std::memory_order_release);
    }
    /// `status` 0: the queue is closed.
    void publish_srq(std::size_t srq_index, std::uint64_t status) noexcept {
        // Release, with the acquire in SessionCore::admit_shared: the session's receives find the queue here.
        srq_records_[srq_index].status.store(status, std::memory_order_release);
    }

    // ---- Sleepers ----

    /// The worker is about to sleep: an application that submits from here on rings its bell (D23).
    void expect_worker_asleep() noexcept { header_->worker_sleep.expect(); }
    /// The worker is awake. True: it was not woken by this session.
    bool worker_awake() noexcept { return header_->worker_sleep.rest(); }
    /// When this session woke the worker, by cycles_now(). Another process may have written any number.
    [[nodiscard]] std::uint64_t woken_at() const noexcept { return header_->woken_at.load(std::memory_order_relaxed); }
    /// Called after Turn::tell(): wakes the application. True: it slept.
    bool wake_told() noexcept {
        tells_ = true;
        return wake_application();
    }

    // ---- Its end ----

    /// The session wrote something that no correct session writes: nothing more is taken from it.
    void break_off(Turn& turn) noexcept;
    [[nodiscard]] bool broken() const noexcept { return broken_; }
    /// The session's requests are refused from here on. `abandoned`: those in its ring are not waited for.
    void begin_closing(std::uint64_t command, std::uint64_t step, bool abandoned) noexcept;
    [[nodiscard]] bool closing() const noexcept { return closing_; }
    /// The command that was given to begin_closing().
    [[nodiscard]] std::uint64_t closing_command() const noexcept { return closing_command_; }
    /// True: the session has nothing in flight and nothing in its ring, or has gone on submitting for so long that it
    /// is not waited for.
    [[nodiscard]] bool drained(std::uint64_t step) noexcept;
    /// From here on nobody takes the session's requests; Session::poll completes them by itself.
    void detach() noexcept;

private:
    static constexpr std::uint32_t kLooksLeftOut = 2;

    [[gnu::always_inline]] void tell(Turn& turn) noexcept {
        if (tells_) [[unlikely]] {
            tells_ = false;
            turn.tell(*this);
        }
    }
    // Gives back what the entry held: its share of the queue and its place among the session's requests.
    [[gnu::always_inline]] void settle(std::size_t qp_index, const InFlightEntry& entry,
                                       bool from_recv_queue) noexcept {
        Share& share = shares_[qp_index];
        if (from_recv_queue) {
            share.end_recv();
        } else if (!planted(Bug::kept_reservation)) {
            share.end_sends(1);
        }
        --in_flight_;
        unsignaled_ -= !entry.signaled();
    }
    // Copies field by field: a copy of the whole would wait until the small stores that made it have left the store
    // buffer (D10). Returns the last eight bytes.
    [[gnu::always_inline]] static std::uint64_t write_slot(Completion& slot, const Completion& completion) noexcept {
        slot.tag = completion.tag;
        slot.qp = completion.qp;
        slot.byte_len = completion.byte_len;
        slot.imm_data = completion.imm_data;
        slot.srq = completion.srq;
        static_assert(offsetof(Completion, status) == 24 && offsetof(Completion, opcode) == 25 &&
                      offsetof(Completion, flags) == 26);
        std::uint32_t sampled_at;
        std::memcpy(&sampled_at, completion.sampled_at, sizeof(sampled_at));
        return std::uint64_t{static_cast<std::uint8_t>(completion.status)} |
               std::uint64_t{static_cast<std::uint8_t>(completion.opcode)} << 8 |
               std::uint64_t{completion.flags} << 16 | std::uint64_t{sampled_at} << 24;
    }
    // The slot was reserved when the request was taken, so there is room, unless the consumer has tampered with the
    // ring.
    [[gnu::always_inline]] void publish(Turn& turn, const Completion& completion, const ibv_wc* datagram) noexcept {
        if (wide_) [[unlikely]] {
            publish_wide(turn, completion, datagram);
            return;
        }
        if (planted(Bug::lost)) {
            return;
        }
        const auto fill = [&](Completion& slot) { return write_slot(slot, completion); };
        if (planted(Bug::twice)) {
            (void)completions_.try_push(fill);
        }
        if (!completions_.try_push(fill)) [[unlikely]] {
            break_off(turn);
            return;
        }
        turn.counters.delivered.add();
        tell(turn);
    }
    void publish_wide(Turn& turn, Completion completion, const ibv_wc* datagram) noexcept;
    // Writes the marked request's completion, a success, into its line. False: it has to go by the ring.
    [[nodiscard]] [[gnu::always_inline]] bool reply(Turn& turn, std::uint32_t byte_len,
                                                    std::uint32_t sampled_at) noexcept {
        const std::uint64_t index = reply_at_ - 1;
        if (reply_at_ == 0 || !submissions_.holds(index)) [[unlikely]] {
            return false;
        }
        if (planted(Bug::lost_in_line)) {
            return true;
        }
        submissions_.answer(index, RequestHead::kReplyWord, std::uint64_t{sampled_at} << 32 | byte_len,
                            std::uint64_t{RequestHead::kReplied} << RequestHead::kFlags);
        reply_at_ = 0;
        rest_ = kLooksLeftOut;
        submissions_.release(0);  // tells of freed slots that were put off
        turn.counters.delivered.add();
        tell(turn);
        return true;
    }
    void end_reply(Completion& completion) noexcept;
    [[nodiscard]] std::uint32_t end_sample(Turn& turn, bool success) noexcept;
    void count_throttled(std::size_t taken) noexcept;
    bool wake_application() noexcept;

    // Members stand in the order in which the hot path needs them.
    RingConsumer<WorkRequest> submissions_;
    RingProducer<Completion> completions_;
    std::uint32_t index_ = 0;
    std::uint32_t completion_slots_ = 0;
    std::uint32_t in_flight_ = 0;
    std::uint32_t pooled_posted_ = 0;
    std::uint32_t unsignaled_ = 0;  // requests in flight that are unsignaled, and that nothing has retired yet
    std::uint32_t rest_ = 0;        // looks that are still to be left out
    // The 64-bit indices of a ring begin at 0 and never wrap, so one more than an index leaves 0 for "none".
    std::uint64_t reply_at_ = 0;  // one more than the index of the request that may be answered in its line; 0: none
    std::uint64_t retired_ = 0;
    Options options_;
    bool closing_ = false;
    bool broken_ = false;
    bool wide_ = false;   // its completions take two slots of the ring (D39)
    bool tells_ = false;  // its application may have to be woken when a completion was written
    Counter refused_;
    std::uint64_t throttled_ = 0;
    std::uint64_t throttled_at_ = 0;   // one more than the slot that was counted last in SessionHeader::throttled
    std::uint64_t closing_since_ = 0;  // the step in which it began
    std::uint64_t closing_command_ = 0;
    SessionHeader* header_ = nullptr;
    QpRecord* records_ = nullptr;
    std::atomic<std::uint64_t>* retired_counts_ = nullptr;
    SrqRecord* srq_records_ = nullptr;
    SessionStages* stages_ = nullptr;
    bool sampling_ = false;         // a request of this session is followed
    std::uint32_t sampled_at_ = 0;  // when the followed request was taken
    OwnLines<Share> shares_;        // by QP index
};

}  // namespace pollcore
