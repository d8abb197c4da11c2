// A worker's interface to flow control, which lets a message go only if the peer has room for it. Each kind of flow
// control is a class in runtime/flow.
//
// The hot loops know only a Gate, which has two numbers. A request that does not pass the gate goes the general way,
// where the queue pair asks its Flow. A queue pair without flow control has NoFlow, and a gate that lets everything
// through.
//
// The default implementations below are right for a queue pair without flow control.
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

/// Limits how many messages may go now, and how long each may be. A message is a request that takes a receive of the
/// peer. Other requests take no credit. But if the credit is 0, they go the general way like messages, and hold()
/// decides about them.
class Gate {
public:
    static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();

    [[nodiscard]] std::uint32_t credit() const noexcept { return credit_; }
    [[nodiscard]] std::uint32_t message_max() const noexcept { return message_max_; }
    [[nodiscard]] bool limited() const noexcept { return credit_ != kUnlimited; }
    void take(std::uint32_t messages) noexcept { credit_ -= messages; }

    // The flow control calls open() and close().
    /// `credit` must be less than kUnlimited.
    void open(std::uint32_t credit, std::uint32_t message_max) noexcept {
        credit_ = credit;
        message_max_ = message_max;
    }
    /// From now on nothing passes. Returns the credit that was left.
    std::uint32_t close() noexcept { return std::exchange(credit_, 0u); }

private:
    std::uint32_t credit_ = kUnlimited;
    std::uint32_t message_max_ = kUnlimited;
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

    /// Decides about a request of any opcode. Session and queue have already counted the request, and all requests
    /// before it were posted or kept. `slot` is the request's place in the session's ring.
    ///
    /// Returns false if the caller must post the request; then hold() has taken the request's credit. Returns true if
    /// the request waits (keep()), was posted in another form, or was refused.
    ///
    /// If the queue pair is in error, hold() is called only until the waiting requests have ended. A request that
    /// hold() does not keep in that time ends after the posted requests.
    [[nodiscard]] virtual bool hold(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                    std::size_t slot) noexcept = 0;
    /// Returns true if frame() must be called for each send that is posted.
    [[nodiscard]] bool frames() const noexcept { return frames_; }
    /// Size of an inline payload of `length` bytes together with its frame.
    [[nodiscard]] virtual std::uint32_t framed_bytes(std::uint32_t length) const noexcept { return length; }
    /// Turns `wr`, which is a send, into the work request that is posted. `wr` has room for one more SGE, or its inline
    /// payload has room for framed_bytes(). `position` is the send's place in the send queue.
    virtual void frame([[maybe_unused]] ibv_send_wr& wr, const WorkRequest&,
                       [[maybe_unused]] std::uint32_t position) noexcept {}
    /// Called when the provider has refused a request. `others` is true if other requests of its chain follow. Returns
    /// true if the connection has to end, and the other requests must not be posted.
    [[nodiscard]] virtual bool refused([[maybe_unused]] Opcode opcode, [[maybe_unused]] bool others) noexcept {
        return false;
    }

    // ---- Receiving ----

    /// Returns true if received() is called for each receive. If it returns false, received() is called only for a
    /// pool's receive that a write with immediate has taken.
    [[nodiscard]] bool watches_receives() const noexcept { return watches_receives_; }
    /// Called when a receive of the queue pair has completed. `pooled` is true if its buffer belongs to a pool. Returns
    /// true if the buffer contains no message.
    [[nodiscard]] virtual bool received(Turn&, const Completion&, [[maybe_unused]] bool pooled) noexcept {
        return false;
    }
    void receives_posted(Turn&, std::uint32_t) noexcept override {}
    /// Returns true while a message is still being read. Until then the application gets no final completion for its
    /// pool.
    [[nodiscard]] virtual bool expects_message() const noexcept { return false; }

    // ---- In-flight entries of the kinds `flow`, `announced` and `reading`. The flow control posted them for itself,
    // or in place of a request ----

    virtual void completed(Turn&, const InFlightEntry&, const ibv_wc&) noexcept {}
    /// Called when the entry gets no completion, because an entry behind it has completed, or because no device will
    /// complete it. Returns true if the connection cannot go on without this completion.
    [[nodiscard]] virtual bool passed_over(Turn&, const InFlightEntry&, Status) noexcept { return false; }

    // ---- The turn in each step, while the flow control is in Turn::flows ----

    /// The worker calls this after the submissions and completions of the step. So a flow control that a submission or
    /// completion has put into Turn::flows has its turn in the same step. Turn::number() distinguishes steps. The queue
    /// pair may be in error or parked; nothing may be posted to a parked queue pair. Adds the number of things done to
    /// `work`. Returns false if the flow control leaves Turn::flows.
    [[nodiscard]] virtual bool turn(Turn& turn, std::uint32_t& work) noexcept = 0;
    /// Returns true if there is something to do for which no event was raised.
    [[nodiscard]] virtual bool has_news(std::uint64_t now) const noexcept = 0;
    /// The interval, in ns, at which a sleeping worker calls has_news().
    [[nodiscard]] virtual std::uint64_t look_every_ns() const noexcept { return kNever; }

    // ---- The queue pair's life ----

    /// Called when a life of the queue pair begins: at first, and after each reset. No request waits. The gate is as
    /// the last life left it. In the first life the gate lets everything through, unless the constructor has closed it.
    virtual void begin_life(Turn& turn) noexcept = 0;
    /// Called when the queue pair is connected.
    virtual void start(Turn&, const FlowStart&) noexcept {}
    /// Limits that are published to the sessions.
    struct Limits {
        std::uint32_t message_max = 0;     ///< in bytes; 0 if unknown or unlimited
        std::uint32_t rendezvous_max = 0;  ///< in bytes; 0 if messages are never announced
        bool sums = false;                 ///< the session computes a checksum of each message
    };
    [[nodiscard]] virtual Limits limits() const noexcept { return {}; }
    /// Called when the queue pair has just failed. From now on its gate is not used. end_life() follows at the end of
    /// the step.
    virtual void fail() noexcept {}
    /// Returns true if the peer may read an announced message until the device has stopped.
    [[nodiscard]] virtual bool peer_may_act() const noexcept { return false; }
    /// Called when the queue pair is in error. Ends the requests that the flow control keeps outside of waiting();
    /// afterwards the caller ends those in waiting(). May be called again.
    virtual void flush(Turn&) noexcept {}
    /// Called when the queue pair is in error. flush() comes first, unless peer_may_act() delays it. Receives that were
    /// granted to this peer become free for other peers. From now on turn() hands out the messages that came before the
    /// error. May be called again.
    virtual void end_life(Turn&) noexcept {}
    /// Called when the queue pair is drained, before a new life begins or the queue pair is forgotten.
    virtual void leave(Turn&) noexcept {}
    /// Called before the queue pair goes back to the control thread.
    virtual void dismiss(Turn&) noexcept {}

    // ---- Waiting requests ----

    [[nodiscard]] const WaitingRequests& waiting() const noexcept { return waiting_; }
    [[nodiscard]] WaitingRequests& waiting() noexcept { return waiting_; }
    /// Returns true if a request uses this lkey and is neither in a ring, nor in waiting(), nor in the send queue.
    /// Called before a memory region is deregistered.
    [[nodiscard]] virtual bool uses_key([[maybe_unused]] std::uint32_t lkey) const noexcept { return false; }

    Due due;  ///< the flow control's place in Turn::flows

protected:
    void set_frames() noexcept { frames_ = true; }
    void watch_receives() noexcept { watches_receives_ = true; }
    [[nodiscard]] WorkerQp& qp() const noexcept { return qp_; }
    /// hold() calls this to keep a request. The request waits behind the other waiting requests, and turn() is called
    /// in this step.
    void keep(Turn& turn, WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    /// turn() calls this to chain the first waiting request, which is `request`. In the end the caller posts the
    /// requests that are still chained (Chains::ring). Returns false if the provider refused an earlier request and the
    /// queue pair has failed. Then `request` stays in waiting(), and ends with the others.
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
