// A session: one application thread's way to one worker, embedded or attached.
//
// Thread safety: a session is used by one thread at a time. Two at once lose requests without a word;
// SessionOptions::check_thread finds that. Control calls on queue pairs may come from other threads meanwhile. No call
// here makes a system call, takes a lock or allocates, except close() and what closes as it does (the destructor, an
// assignment), wait(), poll() with a time limit, and arm(); and try_submit where the worker may sleep
// (IdlePolicy::event) and does: it writes the worker's eventfd.
//
// Who owns a buffer: the application until try_submit accepts the work request; then the device, until the
// request's completion was polled. An unsignaled request that succeeds makes no completion: its buffer is
// free once a later completion of the same send queue was polled, or retired() counts it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "pollcore/completion.hpp"
#include "pollcore/export.h"
#include "pollcore/latency.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

struct SessionOptions {
    std::string worker{};                   ///< name from the configuration; empty: the one with the fewest sessions
    std::uint32_t submission_slots = 1024;  ///< a power of two; 64 bytes each
    std::uint32_t completion_slots = 1024;  ///< a power of two; 32 bytes each: the most work requests in flight
    /// Completions beside those, for messages of receive pools: as many as the session's pools have buffers together.
    std::uint32_t pool_buffers = 0;
    /// Completions of 64 bytes: Session::poll can give WideCompletions, which say where datagrams came from.
    bool wide_completions = false;
    /// Only with wide_completions: successful completions have the device's time stamp,
    /// CompletionExtension::device_time. The session's queue pairs complete on CQs that only such queue pairs have, and
    /// that are polled by ibv_start_poll whatever WorkerConfig::poll says; each completion there is a little more work
    /// for the worker. A queue pair is refused with EOPNOTSUPP on a device whose
    /// DeviceReport::completion_timestamp_mask is 0.
    bool device_time = false;
    /// Session::wait() may sleep, and event_fd() and arm() are there. For each step that completes something the worker
    /// looks whether this session's thread sleeps, which takes an atomic operation, and a system call where it does.
    bool events = false;
    std::chrono::nanoseconds wait_spin{20'000};  ///< Session::wait() looks for so long before it sleeps
    /// Ends the program with a line in the log when a second thread uses the session. It is the first caller's until it
    /// is moved or Session::hand_over() is called. The environment variable POLLCORE_CHECK_THREAD=1 does this for all
    /// sessions of a process, and a library that was built with assertions always does. Switched off it costs nothing.
    bool check_thread = false;
};

/// Why a work request was not accepted. Nothing was done. See is_temporary().
enum class Refusal : std::uint8_t {
    none,
    // No room now.
    submission_ring_full,
    completion_ring_full,  ///< as many requests in flight as the session has completion slots
    send_queue_full,       ///< this session's share of the QP's send queue is in flight
    receive_queue_full,
    srq_full,  ///< as many receives of the shared receive queue in flight as it has room for
    // Not like this.
    stale_handle,   ///< no such queue pair, or it was closed or reset; no such shared receive queue of this session
    not_connected,  ///< a send before the QP is ready
    qp_in_error,    ///< see Session::cause
    bad_opcode,     ///< no opcode, or not one of this QP's type: see opcodes_of
    bad_flags,
    too_many_sges,
    no_sge,  ///< WorkRequest::num_sge is 0, and the length of its SGE is not: nothing of it would be sent or received
    inline_too_long,
    misaligned_atomic,  ///< the remote address of an atomic is no multiple of 8, or it has not one SGE of 8 bytes
    not_receiver,  ///< receives of this QP belong to another session, or come from a shared receive queue or a pool
    no_share,  ///< this session has no part in the queue pair, or none in its send queue: see QueuePairOptions::shares
    message_too_long,  ///< with flow control: longer than Session::message_max, and not for rendezvous (see
                       ///< Session::rendezvous_max)
    session_closed,
};
[[nodiscard]] POLLCORE_API std::string_view refusal_name(Refusal refusal) noexcept;
/// Whether the same call may succeed later, once completions were polled.
[[nodiscard]] constexpr bool is_temporary(Refusal refusal) noexcept {
    return refusal > Refusal::none && refusal <= Refusal::srq_full;
}

/// What try_submit took: the first `accepted` requests. When fewer than asked, `refusal` says which limit
/// stopped the next one.
struct [[nodiscard]] Submitted {
    std::size_t accepted = 0;
    Refusal refusal = Refusal::none;
};

class SessionCore;

/// Figures of one session since it was opened. Accepted = completed + retired + in flight, always.
struct SessionFigures {
    std::uint64_t accepted = 0;   ///< work requests that try_submit took
    std::uint64_t completed = 0;  ///< completions that poll gave
    std::uint64_t retired = 0;    ///< unsignaled requests that succeeded, as far as known here
    std::uint64_t refused = 0;
    /// Of an attached process: requests that its worker left in the ring for a step or more, since the process had had
    /// its share of the step. Each has a part in requests and bytes, so that one with many sessions or long messages
    /// leaves the others theirs.
    std::uint64_t throttled = 0;
    [[nodiscard]] std::uint64_t in_flight() const noexcept { return accepted - completed - retired; }
};

/// When the daemon that serves an attached session ends without a word, each request in flight completes with
/// Status::daemon_gone, once the kernel says that it is gone, and no device writes the buffers any more.
class POLLCORE_API Session {
public:
    /// Names no session: it takes and gives nothing.
    Session() noexcept;
    /// Made by Context::open_session.
    POLLCORE_INTERNAL explicit Session(std::unique_ptr<SessionCore> core) noexcept;
    ~Session();
    Session(Session&&) noexcept;
    Session& operator=(Session&&) noexcept;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// All of these take receives too, for a queue pair or, as Opcode::srq_recv, for a shared receive queue.
    ///
    /// Takes work requests with at most one SGE each, in order, until one is refused. The worker sees those that were
    /// taken at once. One without kSignaled has no completion when it succeeds: see retired().
    Submitted try_submit(std::span<const WorkRequest> requests) noexcept;
    [[nodiscard]] Refusal try_submit(const WorkRequest& request) noexcept;
    /// A work request with any number of SGEs: `sges` replaces request.sge and request.num_sge.
    [[nodiscard]] Refusal try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept;
    /// A send or RDMA write whose bytes are taken before the call returns; they need not be registered.
    [[nodiscard]] Refusal try_submit_inline(const WorkRequest& request, std::span<const std::byte> payload) noexcept;

    /// Takes up to `out.size()` completions; 0 when there are none now. Either form works on every session: a wide
    /// one's extensions can be left, and those of one that is not wide are all 0.
    [[nodiscard]] std::size_t poll(std::span<Completion> out) noexcept;
    [[nodiscard]] std::size_t poll(std::span<WideCompletion> out) noexcept;
    /// As poll(), and where there are none now, wait(timeout) and poll() again. 0 also when wait() had something else
    /// to tell, such as room for a request that was refused. Who polls in a loop gets an operation's completion sooner
    /// by this than by poll() alone: it looks when that does not delay the worker. Who waits for something else
    /// besides, such as memory that a peer writes, uses poll() alone.
    [[nodiscard]] std::size_t poll(std::span<Completion> out, std::chrono::nanoseconds timeout) noexcept;
    [[nodiscard]] std::size_t poll(std::span<WideCompletion> out, std::chrono::nanoseconds timeout) noexcept;

    /// Gives buffers of receive pools back, of completions that name one (kPooled); others are passed over. They are
    /// not to be touched any more. Says how many completions were dealt with; when those are fewer than given, it is
    /// since the submission ring was full (for the rest: try again) or the session is closed. Several at once take
    /// fewer slots of it.
    [[nodiscard]] Submitted release(std::span<const Completion> completions) noexcept;
    [[nodiscard]] Refusal release(const Completion& completion) noexcept { return release({&completion, 1}).refusal; }

    /// Waits until poll() has something to give, or there may be room for what was refused: unsignaled requests were
    /// retired since this was last said, or the worker has taken from a ring that was full. For
    /// SessionOptions::wait_spin by looking, then asleep. False when the time was over before, and at once when the
    /// session has ended and nothing is left to poll; max() is no time limit, and saves the kernel a timer. Without
    /// SessionOptions::events it does not sleep, and looks all the time; nor while the submission ring is full, which
    /// takes the worker microseconds.
    [[nodiscard]] bool wait(std::chrono::nanoseconds timeout) noexcept;
    /// For a program with an event loop of its own: readable when wait() may have nothing to wait for, once arm() has
    /// returned true. It may be readable for nothing. -1 without SessionOptions::events. The session's; poll it, and
    /// leave reading it to arm().
    [[nodiscard]] int event_fd() const noexcept;
    /// Asks the worker to make event_fd() readable with the next completion or retirement, once. False: there is one
    /// already, or something was refused since the submission ring was full, and nothing was asked for: try again.
    /// Always false without SessionOptions::events. As ibv_req_notify_cq(3), and the look after it.
    [[nodiscard]] bool arm() noexcept;

    /// Unsignaled work requests of this session on this QP that succeeded, since the QP was opened, modulo
    /// 2^32: the oldest ones, in post order. Those that failed are not among them: each has a completion, which stands
    /// in the ring before a later one is counted. So take the count, poll until nothing is left, and then the oldest
    /// without a completion are the ones. Of a handle that is stale, since the QP was closed or reset: as last seen.
    [[nodiscard]] std::uint32_t retired(QpHandle qp) noexcept;

    /// State of a queue pair as its worker last published it; `closed` for a stale handle, and where this session has
    /// no part in it.
    [[nodiscard]] QpState state(QpHandle qp) const noexcept;
    /// With flow control, once the peer has said it: the longest message that it receives. Else 0.
    [[nodiscard]] std::uint32_t message_max(QpHandle qp) const noexcept;
    /// The same of messages that the peer reads by rendezvous (QueuePairOptions::rendezvous_pool); 0: it reads none.
    [[nodiscard]] std::uint32_t rendezvous_max(QpHandle qp) const noexcept;
    /// What put the QP into error; success when it is not.
    [[nodiscard]] Status cause(QpHandle qp) const noexcept;

    [[nodiscard]] SessionFigures figures() noexcept;
    /// Where the time of this session's requests went since it was opened, in a sample of them. Any thread.
    [[nodiscard]] StageLatency stage_latency() const noexcept;
    [[nodiscard]] std::uint32_t id() const noexcept;
    [[nodiscard]] std::uint32_t worker() const noexcept;
    [[nodiscard]] bool valid() const noexcept { return core_ != nullptr; }

    /// The next call may come from another thread, for SessionOptions::check_thread. What this thread did so far must
    /// be visible there, by a mutex for example.
    void hand_over() noexcept;

    /// Closes the session's queue pairs and takes it off its worker. Every request still in flight gets its
    /// completion; poll() still gives what is left. Blocks for the time that retiring queue pairs takes.
    /// The destructor closes too.
    void close() noexcept;

private:
    /// The thread that uses the session, for SessionOptions::check_thread; 0: none so far. Nobody uses one that has
    /// just been moved.
    struct User {
        std::uint64_t thread = 0;
        User() noexcept = default;
        User(User&&) noexcept {}
        User& operator=(User&&) noexcept {
            thread = 0;
            return *this;
        }
    };

    std::unique_ptr<SessionCore> core_;
    User user_;
};

}  // namespace pollcore
