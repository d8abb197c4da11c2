// A worker's interface to flow control. Each kind is a class of its own (runtime/flow).
//
// The hot loops know only a Gate of two numbers. A request that does not pass it goes the general way, where the queue
// pair asks its Flow. A queue pair without flow control has NoFlow, and a gate that lets everything through.
//
// Functions with a default do what happens without flow control.
//
// Thread safety: the control thread makes a Flow. It belongs to the worker from the command that adds the queue pair
// until the worker has answered the command that forgets the queue pair.
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
/// Other requests take no credit. If the credit is 0, they go the general way, too, and hold() lets them go.
class Gate {
public:
    static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();

    [[nodiscard]] std::uint32_t credit() const noexcept { return credit_; }
    [[nodiscard]] std::uint32_t message_max() const noexcept { return message_max_; }
    [[nodiscard]] bool limited() const noexcept { return limited_; }
    void take(std::uint32_t messages) noexcept { credit_ -= messages; }

    // The flow control calls open() and close().
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

/// The flow control of one queue pair.
class Flow : public ReceiveWatcher {
public:
    static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

    /// `qp` owns this object.
    Flow(WorkerQp& qp, WaitingRequests waiting) : qp_(qp), waiting_(std::move(waiting)) {}
    virtual ~Flow() = default;
    Flow(const Flow&) = delete;
    Flow& operator=(const Flow&) = delete;

    // ---- Sending ----

    /// Decides about a request, whatever its opcode. Session and queue have counted the request already, and all
    /// requests before it were posted or kept. `slot`: the place of the request in the session's ring.
    ///
    /// False: the caller posts the request, and hold() has taken its credit. True: the request waits (keep()), was
    /// posted in another form, or was refused.
    ///
    /// If the queue pair is in error, hold() is called only until the waiting requests have ended. A request that it
    /// does not keep in that time ends after the posted ones.
    [[nodiscard]] virtual bool hold(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                    std::size_t slot) noexcept = 0;
    /// True: frame() is called for each send that is posted.
    [[nodiscard]] bool frames() const noexcept { return frames_; }
    /// Size of an inline payload of `length` bytes together with its frame.
    [[nodiscard]] virtual std::uint32_t framed_bytes(std::uint32_t length) const noexcept { return length; }
    /// Turns `wr`, which holds a send, into the work request that goes to the peer. The SGEs of `wr` have room for one
    /// more, or its inline payload has room for framed_bytes(). `position`: place of the send in the send queue.
    virtual void frame([[maybe_unused]] ibv_send_wr& wr, const WorkRequest&,
                       [[maybe_unused]] std::uint32_t position) noexcept {}
    /// The provider refused a request. `others`: other requests of the same chain follow. True: the connection has to
    /// end, and the other requests must not be posted.
    [[nodiscard]] virtual bool refused([[maybe_unused]] Opcode opcode, [[maybe_unused]] bool others) noexcept {
        return false;
    }

    // ---- Receiving ----

    /// True: received() is called for each receive. False: received() is called only for a pool's receive that a write
    /// with immediate has taken.
    [[nodiscard]] bool watches_receives() const noexcept { return watches_receives_; }
    /// A receive of the queue pair has completed. `pooled`: its buffer is a pool's. Returns true if the buffer holds no
    /// message.
    [[nodiscard]] virtual bool received(Turn&, const Completion&, [[maybe_unused]] bool pooled) noexcept {
        return false;
    }
    void receives_posted(Turn&, std::uint32_t) noexcept override {}
    /// True: a message is still being read, so the application is not told yet that the pool's receives have ended.
    [[nodiscard]] virtual bool expects_message() const noexcept { return false; }

    // ---- In-flight entries of the kinds `flow`, `announced` and `reading`: the flow control posted them for itself,
    // or in place of a request ----

    virtual void completed(Turn&, const InFlightEntry&, const ibv_wc&) noexcept {}
    /// The entry gets no completion: an entry behind it has completed, or no device will ever complete it. Returns true
    /// if the connection cannot go on without that entry.
    [[nodiscard]] virtual bool passed_over(Turn&, const InFlightEntry&, Status) noexcept { return false; }

    // ---- The turn in each step, while the flow control is in Turn::flows ----

    /// The worker calls this after the submissions and completions of the step. So a flow control that one of these has
    /// put into Turn::flows has its turn in the same step. Turn::number() tells steps apart. The queue pair may be in
    /// error, or parked; nothing may be posted to a parked one. Adds to `work` how much was done. False: the flow
    /// control leaves Turn::flows.
    [[nodiscard]] virtual bool turn(Turn& turn, std::uint32_t& work) noexcept = 0;
    /// True: there is something to do for which no event was raised.
    [[nodiscard]] virtual bool has_news(std::uint64_t now) const noexcept = 0;
    /// A sleeping worker asks has_news() each time that so many ns are over.
    [[nodiscard]] virtual std::uint64_t look_every_ns() const noexcept { return kNever; }

    // ---- The queue pair's life ----

    /// A life of the queue pair begins, the first or a later one. No request waits. The gate is as the last life left
    /// it. In the first life it lets everything through, unless the constructor has closed it.
    virtual void begin_life(Turn& turn) noexcept = 0;
    /// The queue pair is connected.
    virtual void start(Turn&, const FlowStart&) noexcept {}
    /// Limits that are published to the sessions.
    struct Limits {
        std::uint32_t message_max = 0;     ///< bytes; 0: not known, or no limit
        std::uint32_t rendezvous_max = 0;  ///< bytes; 0: no message is announced
        bool sums = false;                 ///< the session computes a checksum of each message
    };
    [[nodiscard]] virtual Limits limits() const noexcept { return {}; }
    /// The queue pair has just failed, and nobody asks its gate any more. end_life() follows at the end of the step.
    virtual void fail() noexcept {}
    /// True: the peer may still read an announced message until the device has stopped.
    [[nodiscard]] virtual bool peer_may_act() const noexcept { return false; }
    /// The queue pair is in error. Ends the requests that the flow control keeps outside of waiting(); the caller ends
    /// those in waiting() afterwards. May be called again.
    virtual void flush(Turn&) noexcept {}
    /// The queue pair is in error; if flush() is due, it was called. Gives the receives that this peer was promised to
    /// other peers, and hands out messages that came before the error. May be called again.
    virtual void end_life(Turn&) noexcept {}
    /// The queue pair is drained. A new life begins, or the queue pair is forgotten.
    virtual void leave(Turn&) noexcept {}
    /// From now on the queue pair belongs to the control thread.
    virtual void dismiss(Turn&) noexcept {}

    // ---- Waiting requests ----

    [[nodiscard]] const WaitingRequests& waiting() const noexcept { return waiting_; }
    [[nodiscard]] WaitingRequests& waiting() noexcept { return waiting_; }
    /// True: a request uses this local key, and is neither in a ring, nor in waiting(), nor in the send queue. Asked
    /// before a memory region ends.
    [[nodiscard]] virtual bool uses_key([[maybe_unused]] std::uint32_t lkey) const noexcept { return false; }

    Due due;  ///< the flow control's place in Turn::flows

protected:
    void set_frames() noexcept { frames_ = true; }
    void watch_receives() noexcept { watches_receives_ = true; }
    [[nodiscard]] WorkerQp& qp() const noexcept { return qp_; }
    /// hold() calls this to keep a request: it waits behind those that wait already, and turn() is called in this step.
    void keep(Turn& turn, WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    /// turn() calls this to chain the first waiting request, which is `request`. The caller rings the doorbells of what
    /// is still chained at the end. False: the provider refused an earlier request, so the queue pair is in error.
    /// `request` stays in waiting(), and ends with the others.
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
