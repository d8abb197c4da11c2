// What a flow control is to a worker. Each kind is a class of its own (runtime/flow).
//
// The hot loops know a Gate of two numbers and nothing else. Whatever does not pass it goes the general way, where the
// queue pair asks its Flow. A queue pair without flow control has NoFlow, and a gate that lets everything through.
//
// What a kind does not override is as without flow control.
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

/// How many messages may go now, and how long they may be. A message is what takes a receive of the peer's; other
/// requests pass an open gate without taking anything of it.
class Gate {
public:
    static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();

    [[nodiscard]] std::uint32_t credit() const noexcept { return credit_; }
    [[nodiscard]] std::uint32_t message_max() const noexcept { return message_max_; }
    [[nodiscard]] bool limited() const noexcept { return limited_; }
    void take(std::uint32_t messages) noexcept { credit_ -= messages; }

    // By the flow control.
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

    /// A request that the session's and the queue's books have: of any opcode, with whatever is in front of it posted
    /// or kept. False: it is to be posted, and has taken of the gate what it takes; since not all that the gate lets
    /// through goes the hot loops' way. True: it waits (keep()), was posted in another form, or was refused. `slot`:
    /// where it stands in the session's ring. While the queue pair is in error it is asked only as long as what waits
    /// has not ended: what it does not keep then ends behind what was posted.
    [[nodiscard]] virtual bool hold(Turn& turn, WorkerSession& session, Share& share, const WorkRequest& request,
                                    std::size_t slot) noexcept = 0;
    /// Sends are framed: frame() is asked for each that is posted.
    [[nodiscard]] bool frames() const noexcept { return frames_; }
    /// Bytes that an inline payload of `length` takes with its frame.
    [[nodiscard]] virtual std::uint32_t framed_bytes(std::uint32_t length) const noexcept { return length; }
    /// Makes `wr`, which has gathered a send, what goes to the peer. It has room for one SGE more, or framed_bytes() of
    /// inline payload. `position`: its place in the send queue.
    virtual void frame(ibv_send_wr&, const WorkRequest&, std::uint32_t) noexcept {}
    /// The provider refused a request. `others`: some of its chain follow. True: they must not go without it, and the
    /// connection is to end.
    [[nodiscard]] virtual bool refused([[maybe_unused]] Opcode opcode, [[maybe_unused]] bool others) noexcept {
        return false;
    }

    // ---- Receiving ----

    /// received() is asked for each receive; else only for those of a pool that a write with immediate took.
    [[nodiscard]] bool watches_receives() const noexcept { return watches_receives_; }
    /// A receive of the queue pair's has completed. `pooled`: with a pool's buffer. True: it holds no message.
    [[nodiscard]] virtual bool received(Turn&, const Completion&, [[maybe_unused]] bool pooled) noexcept {
        return false;
    }
    void receives_posted(Turn&, std::uint32_t) noexcept override {}
    /// Messages may come that are announced, so that the end of the pool's receives is not the last word.
    [[nodiscard]] virtual bool expects_message() const noexcept { return false; }

    // ---- What it has posted for itself, or in place of a request: entries of kinds flow, announced and reading ----

    virtual void completed(Turn&, const InFlightEntry&, const ibv_wc&) noexcept {}
    /// No completion comes for it: one behind it has completed, or no device ever will. True: the connection cannot go
    /// on without it.
    [[nodiscard]] virtual bool passed_over(Turn&, const InFlightEntry&, Status) noexcept { return false; }

    // ---- Its turn in each step, while it stands in Turn::flows ----

    /// Behind the submissions and completions of the step, hence in the one in which these have added it;
    /// Turn::number() tells steps apart. Also while the queue pair is parked, when nothing may be posted to it, and
    /// once it is in error. Adds to `work` how much was done. False: it need have no turn until it is added again.
    [[nodiscard]] virtual bool turn(Turn& turn, std::uint32_t& work) noexcept = 0;
    /// There is something to do that no event tells of.
    [[nodiscard]] virtual bool has_news(std::uint64_t now) const noexcept = 0;
    /// How often a worker that sleeps asks has_news(), in ns.
    [[nodiscard]] virtual std::uint64_t look_every_ns() const noexcept { return kNever; }

    // ---- The queue pair's life ----

    /// A life begins, the first one too: nothing waits. The gate is as the last life left it; in the first it lets
    /// everything through, unless the constructor has closed it.
    virtual void begin_life(Turn& turn) noexcept = 0;
    /// It is connected.
    virtual void start(Turn&, const FlowStart&) noexcept {}
    /// What the session may know.
    struct Limits {
        std::uint32_t message_max = 0;     ///< 0: not known, or none
        std::uint32_t rendezvous_max = 0;  ///< 0: nothing is announced
        bool sums = false;
    };
    [[nodiscard]] virtual Limits limits() const noexcept { return {}; }
    /// The queue pair has failed, and nobody asks its gate any more; the rest comes with end_life().
    virtual void fail() noexcept {}
    /// As long as the device goes on, the peer may still do something with what waits.
    [[nodiscard]] virtual bool peer_may_act() const noexcept { return false; }
    /// The queue pair is in error, and what waits ends now: what it keeps elsewhere is to end before that. May be
    /// called again.
    virtual void flush(Turn&) noexcept {}
    /// After that: what its peer was promised is others' again, and what came before the error is handed out. May be
    /// called again.
    virtual void end_life(Turn&) noexcept {}
    /// The queue pair is drained, and will begin again or is forgotten.
    virtual void leave(Turn&) noexcept {}
    /// It is the control thread's from here on.
    virtual void dismiss(Turn&) noexcept {}

    // ---- What waits ----

    [[nodiscard]] const WaitingRequests& waiting() const noexcept { return waiting_; }
    [[nodiscard]] WaitingRequests& waiting() noexcept { return waiting_; }
    /// For a search: by a request that stands neither in a ring, nor in waiting(), nor in the send queue.
    [[nodiscard]] virtual bool uses_key(std::uint32_t) const noexcept { return false; }

    Due due;  ///< of Turn::flows

protected:
    void set_frames() noexcept { frames_ = true; }
    void watch_receives() noexcept { watches_receives_ = true; }
    [[nodiscard]] WorkerQp& qp() const noexcept { return qp_; }
    /// From hold(): it waits, behind what waits already, and turn() comes in this step.
    void keep(Turn& turn, WorkerSession& session, const WorkRequest& request, std::size_t slot) noexcept;
    /// From turn(): the first of what waits, which is `request`, is chained. False: what was chained before it was
    /// refused, and the queue pair is in error, so it waits for its end. Whoever has called it rings the doorbells.
    [[nodiscard]] bool post_front(Turn& turn, const WorkRequest& request) noexcept;

private:
    WorkerQp& qp_;
    WaitingRequests waiting_;
    bool frames_ = false;
    bool watches_receives_ = false;
};

/// Of a queue pair without flow control.
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
