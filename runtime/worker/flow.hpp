// A worker's interface to flow control. Each kind is a class of its own (runtime/flow).
//
// The hot loops know only a Gate of two numbers. A request that does not pass it goes the general way, where the queue
// pair asks its Flow. A queue pair without flow control has NoFlow, and a gate that lets everything through.
//
// A function that a kind does not override does what happens without flow control.
//
// Thread safety: made by the control thread, the worker's from the command that adds its queue pair until the answer to
// the one that forgets it.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include <infiniband/verbs.h>

#include "pollcore/completion.hpp"
#include "pollcore/work_request.hpp"
#include "worker/command.hpp"
#include "worker/due_list.hpp"
#include "worker/in_flight.hpp"
#include "worker/recv_queue.hpp"
#include "worker/turn.hpp"
#include "worker/waiting_requests.hpp"
#include "worker/worker_session.hpp"

namespace pollcore {

class WorkerQp;

/// How many messages may go now, and how long they may be. A message is a request that takes a receive of the peer.
/// Other requests pass an open gate and take no credit.
class Gate {
public:
    static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();

    [[nodiscard]] std::uint32_t credit() const noexcept { return credit_; }
    [[nodiscard]] std::uint32_t message_max() const noexcept { return message_max_; }
    [[nodiscard]] bool limited() const noexcept { return limited_; }
    void take(std::uint32_t messages) noexcept { credit_ -= messages; }

    // Called by the flow control.
    void open(std::uint32_t credit, std::uint32_t message_max) noexcept {
        credit_ = credit;
        message_max_ = message_max;
        limited_ = true;
    }
    /// Nothing passes. Returns the credit that was left.
    std::uint32_t close() noexcept {
        limited_ = true;
        return std::exchange(credit_, 0u);
    }

private:
    std::uint32_t credit_ = kUnlimited;
    std::uint32_t message_max_ = kUnlimited;
    bool limited_ = false;
};

class Flow : public ReceiveWatcher {
public:
    static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

    /// `qp` owns it.
    Flow(WorkerQp& qp, WaitingRequests waiting) : qp_(qp), waiting_(std::move(waiting)) {}
    virtual ~Flow() = default;
    Flow(const Flow&) = delete;
    Flow& operator=(const Flow&) = delete;

    // ---- Sending ----

    /// Decides about a request of any opcode, which the books of session and queue have already. All requests before it
    /// were posted or kept. False: the caller posts it, and its credit is taken, since requests that the gate lets
    /// through may come this way, too. True: it waits (keep()), was posted in another form, or was refused. `slot`: its
    /// place in the session's ring. While the queue pair is in error, this is called only until the waiting requests
    /// have ended; a request that it does not keep then ends behind the posted ones.
    [[nodiscard]] virtual bool hold(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                    std::size_t slot) noexcept = 0;
    /// Sends are framed: frame() is called for each that is posted.
    [[nodiscard]] bool frames() const noexcept { return frames_; }
    /// Bytes that an inline payload of `length` takes with its frame.
    [[nodiscard]] virtual std::uint32_t framed_bytes(std::uint32_t length) const noexcept { return length; }
    /// Turns `wr`, which holds a gathered send, into the work request that goes to the peer. It has room for one more
    /// SGE, or for framed_bytes() of inline payload. `position`: its place in the send queue.
    virtual void frame(ibv_send_wr&, const WorkRequest&, std::uint32_t) noexcept {}
    /// The provider refused a request. `others`: other requests of its chain follow. True: they must not go without it,
    /// and the connection has to end.
    [[nodiscard]] virtual bool refused([[maybe_unused]] Opcode opcode, [[maybe_unused]] bool others) noexcept {
        return false;
    }

    // ---- Receiving ----

    /// received() is called for each receive. False: only for a pool's receives that a write with immediate took.
    [[nodiscard]] bool watches_receives() const noexcept { return watches_receives_; }
    /// A receive of the queue pair has completed. `pooled`: with a pool's buffer. True: it holds no message.
    [[nodiscard]] virtual bool received(Turn&, const Completion&, [[maybe_unused]] bool pooled) noexcept {
        return false;
    }
    void receives_posted(Turn&, std::uint32_t) noexcept override {}
    /// An announced message may still come, so the application is not told the end of the pool's receives yet.
    [[nodiscard]] virtual bool expects_message() const noexcept { return false; }

    // ---- What it has posted for itself, or in place of a request: entries of kinds flow, announced and reading ----

    virtual void completed(Turn&, const InFlightEntry&, const ibv_wc&) noexcept {}
    /// The entry gets no completion: an entry behind it has completed, or no device will ever complete it. True: the
    /// connection cannot go on without it.
    [[nodiscard]] virtual bool passed_over(Turn&, const InFlightEntry&, Status) noexcept { return false; }

    // ---- Its turn in each step, while it stands in Turn::flows ----

    /// Called after the submissions and completions of the step, so a flow control that these have added has its turn
    /// in the same step. Turn::number() tells steps apart. Called, too, while the queue pair is parked, when nothing
    /// may be posted to it, and when it is in error. Adds to `work` how much was done. False: it needs no turn until it
    /// is added again.
    [[nodiscard]] virtual bool turn(Turn& turn, std::uint32_t& work) noexcept = 0;
    /// There is something to do for which no event was raised.
    [[nodiscard]] virtual bool has_news(std::uint64_t now) const noexcept = 0;
    /// How often a worker that sleeps asks has_news(), in ns.
    [[nodiscard]] virtual std::uint64_t look_every_ns() const noexcept { return kNever; }

    // ---- The queue pair's life ----

    /// A life begins, the first or a later one. No request waits. The gate is as the last life left it; in the first it
    /// lets everything through, unless the constructor has closed it.
    virtual void begin_life(Turn& turn) noexcept = 0;
    /// The queue pair is connected.
    virtual void start(Turn&, const FlowStart&) noexcept {}
    /// Limits that the session is told.
    struct Limits {
        std::uint32_t message_max = 0;     ///< 0: not known, or none
        std::uint32_t rendezvous_max = 0;  ///< 0: nothing is announced
        bool sums = false;
    };
    [[nodiscard]] virtual Limits limits() const noexcept { return {}; }
    /// The queue pair has failed, and nobody asks its gate any more; the rest comes with end_life().
    virtual void fail() noexcept {}
    /// As long as the device goes on, the peer may still act on waiting requests.
    [[nodiscard]] virtual bool peer_may_act() const noexcept { return false; }
    /// The queue pair is in error, and the waiting requests end right after this. Ends requests that the flow control
    /// keeps elsewhere. May be called again.
    virtual void flush(Turn&) noexcept {}
    /// Called in error, after flush() if that is due: gives receives that the peer was promised to others, and hands
    /// out messages that came before the error. May be called again.
    virtual void end_life(Turn&) noexcept {}
    /// The queue pair is drained, and will begin again or is forgotten.
    virtual void leave(Turn&) noexcept {}
    /// The queue pair is the control thread's from here on.
    virtual void dismiss(Turn&) noexcept {}

    // ---- Waiting requests ----

    [[nodiscard]] const WaitingRequests& waiting() const noexcept { return waiting_; }
    [[nodiscard]] WaitingRequests& waiting() noexcept { return waiting_; }
    /// For a search: the key is used by a request that stands neither in a ring, nor in waiting(), nor in the send
    /// queue.
    [[nodiscard]] virtual bool uses_key(std::uint32_t) const noexcept { return false; }

    Due due;  ///< of Turn::flows

protected:
    void set_frames() noexcept { frames_ = true; }
    void watch_receives() noexcept { watches_receives_ = true; }
    [[nodiscard]] WorkerQp& qp() const noexcept { return qp_; }
    /// Called by hold(): the request waits behind those that wait already, and turn() is called in this step.
    void keep(Turn& turn, WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    /// Called by turn(): chains the first waiting request, which is `request`. False: a request that was chained before
    /// it was refused, and the queue pair is in error, so `request` waits for its end. The caller rings the doorbells.
    [[nodiscard]] bool post_front(Turn& turn, const WorkRequest& request) noexcept;

private:
    WorkerQp& qp_;
    WaitingRequests waiting_;
    bool frames_ = false;
    bool watches_receives_ = false;
};

/// For a queue pair without flow control.
class NoFlow final : public Flow {
public:
    explicit NoFlow(WorkerQp& qp) : Flow(qp, WaitingRequests()) {}
    [[nodiscard]] bool hold(Turn&, WorkerSession&, Share&, const WorkRequest&, std::size_t) noexcept override {
        return false;
    }
    [[nodiscard]] bool turn(Turn&, std::uint32_t&) noexcept override { return false; }
    [[nodiscard]] bool has_news(std::uint64_t) const noexcept override { return false; }
    void begin_life(Turn&) noexcept override {}
};

}  // namespace pollcore
