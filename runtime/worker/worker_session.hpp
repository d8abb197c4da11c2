// A session, as the worker sees it: the worker's ends of the session's two rings, and the worker's counts of the
// session's requests in flight.
//
// The worker takes a request only if the completion ring has a free slot for its completion (I3). So a completion never
// waits for a slot.
//
// The worker may write a completion into the cache line of its request instead of the completion ring (D50). To allow
// this, a session marks a request (CompletionInbox::expect_reply). The session marks one request at a time, and only if
// it has no other request in that send queue. Such an answer moves no other cache line: the worker's cache has the
// request's line, and the application looks at it as well as at the ring. The worker may write the answer until it has
// published that the request's slot is free. So while a marked request is in flight, the worker delays this news. It
// holds back at most a quarter of the ring's slots, and none if the ring is small (RingConsumer::release_later). Before
// it sleeps, it publishes all free slots. A failure, or a completion that is too late for the line, goes through the
// ring with the flag kNotInLine. The flag tells the session to stop looking at the line.
//
// Thread safety: the control thread makes the object. It belongs to the worker from the command AddSession until the
// worker has answered RemoveSession. Any thread may call figures().
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

    /// Returns null if the session has no part in a queue pair with this index.
    [[nodiscard]] WorkerQp* qp() const noexcept { return qp_; }
    [[nodiscard]] QpHandle handle() const noexcept { return handle_; }
    [[nodiscard]] std::uint32_t send_room() const noexcept { return send_depth_ - std::min(sends_, send_depth_); }
    [[nodiscard]] bool sends_full() const noexcept { return sends_ >= send_depth_; }
    [[nodiscard]] bool recvs_full() const noexcept { return recvs_ >= recv_depth_; }

    void take_sends(std::uint32_t n) noexcept { sends_ += n; }
    void end_sends(std::uint32_t n) noexcept { sends_ -= n; }
    void take_recv() noexcept { ++recvs_; }
    void end_recv() noexcept { --recvs_; }
    /// Counts one more send that has retired, which means that it succeeded without a completion for the application.
    /// Returns the number of retired sends so far, modulo 2^32.
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

/// Limits the work that a worker takes in each step from all sessions of one other process together (deficit round
/// robin). Each step grants a quantum. An unused remainder expires, but a debt stays. The object belongs to the worker.
class ClientShare {
public:
    /// The cost of a request, in bytes. A request with a longer message costs the length of the message.
    static constexpr std::int64_t kRequest = 4096;

    /// `id` names the process; 0 names the worker's own process.
    explicit ClientShare(std::uint32_t id = 0) : id_(id) {}

    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
    /// Returns true if the worker may take more of the process's work in this step. `quantum` is the number of bytes
    /// that each step grants.
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
    std::uint64_t step_ = 0;  // the step for which left_ holds
    // in bytes; negative if the last message cost more than remained: the next steps pay this debt
    std::int64_t left_ = 0;
};

class alignas(kCacheLine) WorkerSession {
public:
    struct Options {
        std::uint32_t id = 0;  ///< the control thread's name for the session; never reused, unlike an index
        /// limit of the session's process; null if this is the worker's own process, which has no limit
        ClientShare* client = nullptr;
        int application_fd = -1;  ///< descriptor on which the application sleeps; -1 if it never sleeps
        /// true if application_fd is a socket to another process, false if it is an eventfd
        bool application_socket = false;
        bool device_time = false;  ///< SessionOptions::device_time
    };
    WorkerSession(void* block, const SessionLayout& layout, const Options& options);

    [[nodiscard]] const Options& options() const noexcept { return options_; }
    /// The session's index at its worker.
    [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
    void set_index(std::uint32_t index) noexcept { index_ = index; }
    /// What the worker has done for the session.
    struct Figures {
        std::uint64_t accepted = 0;   ///< requests that the worker took
        std::uint64_t completed = 0;  ///< completions for the session, with messages of receive pools
        /// Requests that the worker refused. Some were bad, and the session's library should have rejected them. Others
        /// came when the session or queue was closing, or exceeded a limit of the peer.
        std::uint64_t refused = 0;
    };
    /// Any thread may call this.
    [[nodiscard]] Figures figures() const noexcept { return {accepted_.value(), completed_.value(), refused_.value()}; }

    // ---- Requests ----

    [[nodiscard]] const RingConsumer<WorkRequest>& submissions() const noexcept { return submissions_; }
    /// Gives the first `n` slots back to the application. The application may learn of this later.
    void release(std::size_t n) noexcept {
        if (reply_at_ == 0) [[likely]] {
            submissions_.release(n);
        } else {
            submissions_.release_later(n);
        }
    }
    /// Called when the ring has no request. Tells the application of free slots if that was delayed and no marked
    /// request is in flight.
    void release_rest() noexcept {
        if (submissions_.unpublished() && reply_at_ == 0) {
            submissions_.publish();
        }
    }
    /// Tells the application of all free slots now, even if a marked request is in flight.
    void release_all() noexcept { submissions_.publish(); }

    /// Returns how many of `wanted` requests, of any kind, may be taken so that each completion has a slot (I3). This
    /// depends on the requests in flight, not on the occupied slots (D13).
    [[nodiscard]] [[gnu::always_inline]] std::uint32_t completion_room(std::uint32_t wanted) noexcept {
        const std::size_t owed = std::size_t{in_flight_} + pooled_posted_;
        const std::size_t slots = completions_.reserve((owed + wanted) << wide_) >> wide_;
        return static_cast<std::uint32_t>(std::min(slots - std::min(owed, slots), std::size_t{wanted}));
    }
    /// Returns false if the process has used its limit in this step. Then the requests of its sessions stay in the
    /// sessions' rings until the next step. `taken` is the number of slots that were taken in this step and not yet
    /// passed to release().
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

    /// Counts `n` requests that the worker took. They are not releases of buffers.
    void count_accepted(std::uint32_t n) noexcept { accepted_.add(n); }
    /// Counts `n` requests as in flight, until they complete or retire.
    void take_sends(Share& share, std::uint32_t n) noexcept {
        if (kAdmission) {
            share.take_sends(n);
            in_flight_ += n;
        }
    }
    /// Counts one of the requests in flight as unsignaled.
    void take_unsignaled() noexcept { ++unsignaled_; }
    void take_recv(Share& share) noexcept {
        share.take_recv();
        ++in_flight_;
    }
    void take_shared_recv() noexcept { ++in_flight_; }
    void take_pooled(std::uint32_t n) noexcept { pooled_posted_ += n; }
    void end_pooled() noexcept { --pooled_posted_; }
    /// Ends a request that was taken but not posted, as a refused request.
    void give_up(Turn& turn, Share& share, const WorkRequest& request, Status status) noexcept;

    /// Returns true if the request must be signaled. This is so if the share or the session has no room for another
    /// request, or if unsignaled requests have more than half of the completion slots. Because of the signal, a session
    /// without room always has a completion or a retirement to wait for.
    [[nodiscard]] bool must_signal(const Share& share) const noexcept {
        return !planted(Bug::wedged) &&
               (share.sends_full() || in_flight_ >= completion_slots_ || unsignaled_ > completion_slots_ / 2);
    }
    [[nodiscard]] std::uint32_t in_flight() const noexcept { return in_flight_; }
    /// The number of receives of the session's pools that wait for a message.
    [[nodiscard]] std::uint32_t pooled_posted() const noexcept { return pooled_posted_; }
    [[nodiscard]] bool idle() const noexcept { return in_flight_ == 0 && pooled_posted_ == 0; }

    /// Called when the worker takes a marked request from the i-th slot.
    void expect_reply(std::size_t i) noexcept {
        static_assert(kSlotsPerWorkRequestMax <= RingConsumer<WorkRequest>::kAnsweredInFrom * 3 / 4,
                      "the longest request fits beside the slots whose release is delayed");
        const std::uint64_t index = submissions_.released() + i;
        reply_at_ = index + 1;
        // the application reads this line all the time; the worker fetches it while the device works
        submissions_.prefetch(index);
    }
    [[nodiscard]] bool expects_reply() const noexcept { return reply_at_ != 0; }
    /// Returns true if the worker should skip this look at the session. The worker has just written an answer into a
    /// request's line, and the application needs a moment to see the answer and to submit again. A look that comes too
    /// early delays the application's write (D16).
    [[nodiscard]] bool rests() noexcept {
        if (rest_ == 0) [[likely]] {
            return false;
        }
        --rest_;
        return true;
    }
    /// Called when the worker takes a request whose latency is measured. The worker measures one request of a session
    /// at a time, until the request completes.
    void begin_sample(Turn& turn, InFlightEntry& entry, std::uint32_t submitted_at) noexcept;
    [[nodiscard]] bool sampling() const noexcept { return sampling_; }

    // ---- Completions ----

    void prefetch_completions() const noexcept { completions_.prefetch(); }
    [[nodiscard]] bool wide() const noexcept { return wide_; }
    /// Number of completion-ring slots written so far, modulo 2^32.
    [[nodiscard]] std::uint32_t completions_written() const noexcept {
        return static_cast<std::uint32_t>(completions_.produced());
    }

    /// Ends a request of a queue pair's send queue or receive queue, and delivers `completion`. `datagram` is the work
    /// completion if the request received a datagram, else null.
    [[gnu::always_inline]] void complete(Turn& turn, std::size_t qp_index, const InFlightEntry& entry,
                                         Completion& completion, bool from_recv_queue,
                                         const ibv_wc* datagram) noexcept {
        completion.tag = entry.tag;
        std::uint32_t sampled_at = 0;
        if ((entry.flags & InFlightEntry::kSampled) != 0) [[unlikely]] {
            sampled_at = end_sample(turn, completion.ok(), bits_of(completion.qp), entry.opcode);
            std::memcpy(completion.sampled_at, &sampled_at, sizeof(sampled_at));
        }
        // The application waits for the completion, so it goes out before the counts are updated.
        if (!entry.replies_in_line()) [[likely]] {
            publish(turn, completion, datagram);
        } else if (!completion.ok() || !reply(turn, completion.byte_len, sampled_at)) {
            end_reply(completion);
            publish(turn, completion, nullptr);
        }
        settle(qp_index, entry, from_recv_queue);
    }
    /// Ends a receive of a shared receive queue, and delivers `completion`.
    void complete_shared_recv(Turn& turn, const Completion& completion, const ibv_wc* datagram) noexcept {
        publish(turn, completion, datagram);
        --in_flight_;
    }
    /// Delivers a message in a buffer of a receive pool or in a record of a write ring, or the final completion of a
    /// queue pair.
    void hand_out(Turn& turn, const Completion& completion, const ibv_wc* datagram) noexcept {
        publish(turn, completion, datagram);
    }
    /// Ends a send that has succeeded and that the application left unsignaled, even if the worker added a signal.
    [[gnu::always_inline]] void retire(Turn& turn, std::size_t qp_index, const InFlightEntry& entry) noexcept {
        settle(qp_index, entry, false);
        if ((entry.flags & InFlightEntry::kSampled) != 0) [[unlikely]] {
            give_up_sample();  // the time at which this request ended is unknown
        }
        Share& share = shares_[qp_index];
        ++retired_;
        // Release, pairs with the acquire in Accounts::refresh_retired: the device no longer uses the buffer.
        const RetiredWord word{.generation = share.handle().generation, .count = share.retire()};
        retired_counts_[qp_index].store(word.pack(), std::memory_order_release);
        header_->retired.store(retired_, std::memory_order_release);
        turn.counters.retired.add();
        tell(turn);  // the application may wait for room
    }
    /// Counts a bad request that gets no completion. The session's library should have rejected the request.
    void count_refused() noexcept { refused_.add(); }
    /// Completes a request with `status` instead of taking it.
    void refuse(Turn& turn, const WorkRequest& request, Status status) noexcept;

    // ---- Successful completions of ordinary requests (ordinary.cc), written many at a time ----

    /// Returns how many of `wanted` completions have a free slot. At most that many may be written before
    /// publish_written().
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
        delivered(turn, n);
    }
    void end_sends(std::size_t qp_index, std::uint32_t n) noexcept {
        if (kAdmission) {
            shares_[qp_index].end_sends(n);
            in_flight_ -= n;
        }
    }
    /// Writes the completion of the marked request into the request's line. Returns false if this is not possible; then
    /// the completion must go through the ring.
    [[nodiscard]] [[gnu::always_inline]] bool complete_in_line(Turn& turn, std::size_t qp_index,
                                                               std::uint32_t byte_len) noexcept {
        if (!reply(turn, byte_len, 0)) {
            return false;
        }
        shares_[qp_index].end_sends(1);
        --in_flight_;
        return true;
    }

    // ---- Records by which the session learns of queue pairs and shared receive queues ----

    void publish_limits(std::size_t qp_index, QpLimitsWord limits, MessageLimitsWord longest) noexcept {
        // Relaxed: the later store of the status publishes these stores.
        records_[qp_index].limits.store(limits.pack(), std::memory_order_relaxed);
        records_[qp_index].longest.store(longest.pack(), std::memory_order_relaxed);
    }
    void publish_status(std::size_t qp_index, const QpStatusWord& status) noexcept {
        // Release, pairs with the acquire in SessionCore::admit: a session that sees this status also sees the limits.
        records_[qp_index].status.store(status.pack(), std::memory_order_release);
    }
    /// `status` is 0 if the queue is closed.
    void publish_srq(std::size_t srq_index, std::uint64_t status) noexcept {
        // Release, pairs with the acquire in SessionCore::admit_shared, which looks up the queue for a receive.
        srq_records_[srq_index].status.store(status, std::memory_order_release);
    }

    // ---- Sleepers ----

    /// The worker is about to sleep. An application that submits from now on wakes the worker (D23).
    void expect_worker_asleep() noexcept { header_->worker_sleep.expect(); }
    /// The worker is awake. Returns true if this session did not wake the worker.
    bool worker_awake() noexcept { return header_->worker_sleep.rest(); }
    /// The time at which this session woke the worker, in cycles of cycles_now(). A hostile process can write any
    /// number here.
    [[nodiscard]] std::uint64_t woken_at() const noexcept { return header_->woken_at.load(std::memory_order_relaxed); }
    /// Called after Turn::tell(). Wakes the application if it sleeps. Returns true if it slept.
    bool wake_told() noexcept {
        tells_ = true;
        return wake_application();
    }

    // ---- The session's end ----

    /// Called when the session wrote something that no correct session writes. The worker takes nothing more from the
    /// session.
    void break_off(Turn& turn) noexcept;
    [[nodiscard]] bool broken() const noexcept { return broken_; }
    /// From now on the session's requests are refused. If `abandoned` is true, the worker does not wait for requests
    /// that are still in the session's ring.
    void begin_closing(std::uint64_t command, std::uint64_t step, bool abandoned) noexcept;
    [[nodiscard]] bool closing() const noexcept { return closing_; }
    /// The `command` that begin_closing() got.
    [[nodiscard]] std::uint64_t closing_command() const noexcept { return closing_command_; }
    /// Returns true if the session has nothing in flight and nothing in its ring. Also returns true if the session is
    /// broken, or if its ring was not empty for so many steps that the worker gives up.
    [[nodiscard]] bool drained(std::uint64_t step) noexcept;
    /// From now on the worker takes no requests of the session. Session::poll itself completes the requests that
    /// remain.
    void detach() noexcept;

private:
    static constexpr std::uint32_t kLooksLeftOut = 2;

    [[gnu::always_inline]] void tell(Turn& turn) noexcept {
        if (tells_) [[unlikely]] {
            tells_ = false;
            turn.tell(*this);
        }
    }
    [[gnu::always_inline]] void delivered(Turn& turn, std::uint32_t completions) noexcept {
        completed_.add(completions);
        turn.counters.delivered.add(completions);
        tell(turn);
    }
    // Subtracts the entry's request, which has ended, from the counts of requests in flight.
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
    // Copies field by field. A copy of the whole struct would stall until the small stores that filled the struct have
    // left the store buffer (D10). Returns the slot's last eight bytes, which the caller stores.
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
    // The ring has room, because the slot was reserved when the request was taken. Only a consumer that has tampered
    // with the ring makes the push fail.
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
        delivered(turn, 1);
    }
    void publish_wide(Turn& turn, Completion completion, const ibv_wc* datagram) noexcept;
    // Writes the successful completion of the marked request into the request's line. Returns false if this is not
    // possible; then the completion must go through the ring.
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
        submissions_.release(0);  // publishes the free slots whose news was delayed
        delivered(turn, 1);
        return true;
    }
    void end_reply(Completion& completion) noexcept;
    [[nodiscard]] std::uint32_t end_sample(Turn& turn, bool success, std::uint32_t qp, Opcode opcode) noexcept;
    void give_up_sample() noexcept { sampling_ = false; }
    void count_throttled(std::size_t taken) noexcept;
    bool wake_application() noexcept;

    // The members are in the order in which the hot path needs them.
    RingConsumer<WorkRequest> submissions_;
    RingProducer<Completion> completions_;
    std::uint32_t index_ = 0;
    std::uint32_t completion_slots_ = 0;
    std::uint32_t in_flight_ = 0;
    std::uint32_t pooled_posted_ = 0;
    std::uint32_t unsignaled_ = 0;  // unsignaled requests in flight
    std::uint32_t rest_ = 0;        // looks that the worker must still skip
    Counter accepted_;
    Counter completed_;
    // The 64-bit indices of a ring begin at 0 and never wrap, so reply_at_ and throttled_at_ hold an index plus one.
    std::uint64_t reply_at_ = 0;  // index, plus one, of the request that may be answered in its line; 0 if none
    std::uint64_t retired_ = 0;
    Options options_;
    bool closing_ = false;
    bool broken_ = false;
    bool wide_ = false;   // each completion takes two slots of the ring (D39)
    bool tells_ = false;  // after the next completion, the application may have to be woken
    Counter refused_;
    std::uint64_t throttled_ = 0;
    // index, plus one, of the request that was last counted in SessionHeader::throttled
    std::uint64_t throttled_at_ = 0;
    std::uint64_t closing_since_ = 0;  // the step in which closing began
    std::uint64_t closing_command_ = 0;
    SessionHeader* header_ = nullptr;
    QpRecord* records_ = nullptr;
    std::atomic<std::uint64_t>* retired_counts_ = nullptr;
    SrqRecord* srq_records_ = nullptr;
    SessionStages* stages_ = nullptr;
    RecentLog<3>* trace_ = nullptr;
    bool sampling_ = false;           // the latency of a request of this session is being measured
    std::uint32_t submitted_at_ = 0;  // when the measured request was submitted
    std::uint32_t sampled_at_ = 0;    // when it was taken
    OwnLines<Share> shares_;          // indexed by the QP's index
};

}  // namespace pollcore
